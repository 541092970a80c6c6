// The links: distribution functions F of the equation Σ F((x − θ)/T) = k.
//
// Each is written in y = z − edge. For links with an end, y = 0 is that end, because a number
// near 0 has digits to spare where a number near −½ has none. z has mean zero, as kofn's has.
//
//   cdf, sf        F and 1 − F, neither by subtraction from 1 where it is small
//   pdf, logPdf    the density; 0 and −∞ outside the support
//   logCdf, logSf  for links with two infinite tails, where sums underflow but logarithms do not
//   omega(p, y)    Ω(p) = ∫F⁻¹ from 0 to p
//   support        the y between which 0 < F < 1

import { logNormalCdf, normalCdf } from "./special.js";

const xLogX = (q) => (q > 0 ? q * Math.log(q) : 0);
const softplus = (t) => Math.max(t, 0) + Math.log1p(Math.exp(-Math.abs(t)));
const EVERYWHERE = [-Infinity, Infinity];

/** A symmetric link, F(−y) = 1 − F(y). */
function symmetric(link) {
  const reflected = { sf: (y) => link.cdf(-y), logSf: (y) => link.logCdf(-y) };
  return { ...link, ...reflected, edge: 0, support: EVERYWHERE, tails: true };
}

const sigmoid = (y) => {
  const e = Math.exp(-Math.abs(y));
  return y > 0 ? 1 / (1 + e) : e / (1 + e);
};

const logistic = symmetric({
  cdf: sigmoid,
  pdf: (y) => sigmoid(y) * sigmoid(-y),
  logCdf: (y) => -softplus(-y),
  logPdf: (y) => -softplus(-y) - softplus(y),
  omega: (p) => xLogX(p) + xLogX(1 - p),
});

const laplace = symmetric({
  cdf: (y) => (y < 0 ? Math.exp(y) / 2 : 1 - Math.exp(-y) / 2),
  pdf: (y) => Math.exp(-Math.abs(y)) / 2,
  logCdf: (y) => (y < 0 ? y - Math.LN2 : Math.log1p(-Math.exp(-y) / 2)),
  logPdf: (y) => -Math.abs(y) - Math.LN2,
  omega: (p) => xLogX(Math.min(p, 1 - p)) + (Math.LN2 - 1) * Math.min(p, 1 - p),
});

const logNormalPdf = (y) => (-y * y) / 2 - Math.log(2 * Math.PI) / 2;

const normal = symmetric({
  cdf: normalCdf,
  pdf: (y) => Math.exp(logNormalPdf(y)),
  logCdf: logNormalCdf,
  logPdf: logNormalPdf,
  omega: (p, y) => -Math.exp(logNormalPdf(y)),
});

/**
 * A link with an end, from log F and log f inside of its support. A y that rounding has put just
 * above the upper end keeps the slope from below: a weight of 1 − 1e−80 is not out of reach.
 */
function ended(edge, support, logCdf, logPdf, omega) {
  const [low, high] = support;
  const inside = (y) => y > low && y < high + 4 * Number.EPSILON;
  const cdf = (y) => (y <= low ? 0 : y >= high ? 1 : Math.exp(logCdf(y)));
  const sf = (y) => (y <= low ? 1 : y >= high ? 0 : -Math.expm1(logCdf(y)));
  const log = (y) => (inside(y) ? logPdf(y, logCdf(y)) : -Infinity);
  const pdf = (y) => Math.exp(log(y));
  return { cdf, sf, pdf, logPdf: log, omega, edge, support, tails: false };
}

const exponential = ended(1, [-Infinity, 0], (y) => y, (y, logF) => logF, xLogX);

const linear = ended(-1 / 2, [0, 1], Math.log, () => 0, (p) => (p * (p - 1)) / 2);

/** (e^s − 1)/s and log(1 + t)/t, at 0 too. */
const expm1Over = (s) => (s === 0 ? 1 : Math.expm1(s) / s);
const log1pOver = (t) => (t === 0 ? 1 : Math.log1p(t) / t);

const NEAR_1 = 1.1; // below, the lower end of entmax is too far away to be counted from

function entmax(alpha) {
  const a = alpha - 1;
  const logPdf = (y, logF) => (1 - a) * logF;
  const omega = (p) => (p > 0 ? (p * Math.log(p) * expm1Over(a * Math.log(p))) / alpha : 0);
  if (alpha < NEAR_1) {
    const low = a > 0 ? -1 / a : -Infinity;
    return ended(1 / alpha, [low, 0], (y) => y * log1pOver(a * y), logPdf, omega);
  }
  return ended(-1 / (alpha * a), [0, 1 / a], (y) => Math.log(a * y) / a, logPdf, omega);
}

const FIXED = { logistic, laplace, normal, exponential, linear };

export const LINK_NAMES = [...Object.keys(FIXED), "entmax"];

/** The link with this name; alpha counts for entmax alone. */
export const linkOf = (name, alpha) => FIXED[name] ?? entmax(alpha);

/** F(z) of a link shifted to mean zero, as in the documentation. */
export const cdfOf = (link, z) => link.cdf(z - link.edge);
