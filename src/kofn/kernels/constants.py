"""Coefficients shared by the CPU and GPU kernels."""

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
