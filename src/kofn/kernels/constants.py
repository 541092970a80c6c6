"""Numbers that more than one kernel needs, for the same reason."""

from __future__ import annotations

# Mills' ratio (1 − Φ)/φ/√(2π) times 3 + z as a polynomial of (z − 3)/(z + 3), to 6e-9 for z ≥ 0:
# its Chebyshev series, cut after the eleventh power.
MILLS = (
    0.7290836952763959,
    -0.5093319842802195,
    0.23001734143636943,
    -0.04726296448279625,
    -0.010458312674553726,
    0.006972202861710224,
    0.0010072475409343442,
    -0.0010447769949248063,
    -0.00021427745369258908,
    0.0001538663342389877,
    3.545063826442842e-05,
    -1.5203482770964945e-05,
)

MILLS_DOUBLE = (
    0.7552851304157514,
    -0.607896641971893,
    0.3871374007422266,
    -0.1865218579595787,
    0.06039657489036092,
    -0.007540188968891619,
    -0.0034796923566515025,
    0.0016308184854735856,
    0.00013334420916014778,
    -0.00023109513778728935,
    -1.907676030719098e-06,
    3.514560235904452e-05,
    7.146021531267462e-07,
    -5.922893777541928e-06,
    -6.249551077565178e-07,
    1.026984070143193e-06,
    2.647337281979868e-07,
    -1.622316320853567e-07,
    -7.878360342693638e-08,
    1.9569608939974048e-08,
    1.60673869573294e-08,
    -1.277235143295772e-09,
    -1.6886576966786735e-09,
)
"""The same times 4 + z as a polynomial of (z − 4)/(z + 4), to 4e-16, from 23 Chebyshev terms."""

SPREAD = 1e5
"""Temperatures that scores may be spread over before their pass asks where most
of them are."""

NEAR_TOP = 1e4
"""Temperatures below the greatest score in which those count that matter in so wide a row."""

USUAL = 1e15
"""Larger scores are additive masks, and tell nothing of the others."""

FAINT_SINGLE, FAINT_DOUBLE = 1e-31, 1e-250
"""Tails that underflow may have taken from, in float32 and float64."""
