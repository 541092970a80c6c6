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

HASTINGS = (2.515517, 0.802853, 0.010328), (1.432788, 0.189269, 0.001308)
"""Φ⁻¹ to 5e-4: t − above/below of t = √(−2 log q) (Abramowitz & Stegun 26.2.23)."""

KINK = 4
"""Roundings above the place where F reaches 1 up to which its slope is still the one below, as in
kofn/links/safe_math.py.
"""

SPREAD = 1e5
"""Temperatures that scores may be spread over before a census asks where most of them are."""

NEAR_TOP = 1e4
"""Temperatures below the greatest score in which those count that matter in so wide a row."""

USUAL = 1e15
"""Larger scores are additive masks, and tell nothing of the others."""

FAINT_SINGLE, FAINT_DOUBLE = 1e-31, 1e-250
"""Tails that underflow may have taken from, in float32 and float64."""
