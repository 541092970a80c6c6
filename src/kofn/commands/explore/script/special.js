// The normal distribution's tail: JavaScript has no erfc of its own.

const SQRT_PI = Math.sqrt(Math.PI);

/** erfc(x)·exp(x²) for x ≥ 2, by its continued fraction, evaluated from its far end. */
function scaledErfc(x) {
  let fraction = x;
  for (let n = 60; n > 0; n--) fraction = x + n / 2 / fraction;
  return 1 / (SQRT_PI * fraction);
}

/** erf(x) for 0 ≤ x < 2, by a series whose terms are all positive. */
function erf(x) {
  let term = (2 / SQRT_PI) * x * Math.exp(-x * x);
  let sum = term;
  for (let n = 1; term > sum * 1e-17; n++) {
    term *= (x * x) / (n + 0.5);
    sum += term;
  }
  return sum;
}

/** Φ(z), with all digits in the lower tail. */
export function normalCdf(z) {
  const x = Math.abs(z) / Math.SQRT2;
  const tail = x < 2 ? (1 - erf(x)) / 2 : (scaledErfc(x) * Math.exp(-x * x)) / 2;
  return z > 0 ? 1 - tail : tail;
}

/** log Φ(z), which does not underflow. */
export function logNormalCdf(z) {
  const x = -z / Math.SQRT2;
  if (x < 2) return z > 0 ? Math.log1p(-normalCdf(-z)) : Math.log(normalCdf(z));
  return Math.log(scaledErfc(x) / 2) - x * x;
}

/** log Σ e^value; −∞ for no values. */
export function logSumExp(values) {
  const most = Math.max(...values);
  if (most === -Infinity) return most;
  return most + Math.log(values.reduce((sum, value) => sum + Math.exp(value - most), 0));
}

export const sum = (values) => values.reduce((total, value) => total + value, 0);
