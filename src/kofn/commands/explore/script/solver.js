// Solve Σ F((x − θ)/T) = k, by Newton's method kept inside of a bracket.
//
// θ is held as a score of the row and an offset to it, so that digits of large scores are not
// lost in x − θ. kofn's own solver knows a row by its sums alone; this one may sort it.

import { logSumExp, sum } from "./special.js";

const ROUNDS = 300;

/**
 * How far ΣF is from k at these y: `side` > 0 if θ must rise, `step` a Newton step in units of T.
 * Entries above ½ count by what they lack of 1; then nothing small is lost in a large sum.
 */
function balance(link, y, k) {
  const upper = y.map((each) => link.cdf(each) > 0.5);
  const missing = upper.filter(Boolean).length - k;
  const low = y.filter((_, i) => !upper[i]);
  const high = y.filter((_, i) => upper[i]);
  // Exactly k entries are above ½, with a gap around θ: ΣF − k is flat, its logarithms are not.
  if (missing === 0 && link.tails) return logBalance(link, low, high);
  const excess = missing + sum(low.map(link.cdf)) - sum(high.map(link.sf));
  const logOdds = Math.log1p(excess / k) - Math.log1p(-excess / (y.length - k));
  const slope = sum(y.map(link.pdf)) * (1 / (k + excess) + 1 / (y.length - k - excess));
  return { side: excess, step: logOdds / slope };
}

function logBalance(link, low, high) {
  const below = logSumExp(low.map(link.logCdf));
  const above = logSumExp(high.map(link.logSf));
  const slope =
    Math.exp(logSumExp(low.map(link.logPdf)) - below) +
    Math.exp(logSumExp(high.map(link.logPdf)) - above);
  return { side: below - above, step: (below - above) / slope };
}

/** Where θ may be anything within an interval, because no weight is between 0 and 1. */
function plateau(link, sorted, k, T) {
  if (!Number.isInteger(k)) return null;
  const [from, to] = [sorted[k] - T * link.support[0], sorted[k - 1] - T * link.support[1]];
  return from <= to ? [from, to] : null;
}

/**
 * The threshold of finite scores for 0 < k < n: y = (x − θ)/T − edge per entry, θ for a link of
 * mean zero, and the interval of all θ if there are several.
 */
export function threshold(link, scores, k, T) {
  const shift = T * link.edge;
  const sorted = [...scores].sort((a, b) => b - a);
  const ends = plateau(link, sorted, k, T);
  // What is large in x − anchor is certain; what decides is near the k-th largest.
  const anchor = sorted[Math.ceil(k) - 1];
  const apart = scores.map((x) => x - anchor);
  const offset = ends ? (ends[0] - anchor) / 2 + (ends[1] - anchor) / 2 : root(link, apart, k, T);
  return {
    y: apart.map((d) => (d - offset) / T),
    theta: anchor + (offset - shift),
    interval: ends && ends[0] < ends[1] ? ends.map((end) => end - shift) : null,
  };
}

function root(link, apart, k, T) {
  const at = (offset) => balance(link, apart.map((d) => (d - offset) / T), k);
  let [low, high] = bracket(at, apart, T);
  let offset = 0; // the k-th largest score, which is the root where all below it underflow
  let last = Infinity;
  for (let round = 0; round < ROUNDS; round++) {
    const { side, step } = at(offset);
    if (side === 0) break;
    if (side > 0) low = offset;
    else high = offset;
    const newton = offset + T * step;
    const good = newton > low && newton < high && Math.abs(T * step) <= last / 2;
    const next = good ? newton : (low + high) / 2;
    last = Math.abs(next - offset);
    if (last === 0 || !(low < next && next < high)) break;
    offset = next;
    if (good && last < 1e-15 * T) break;
  }
  return offset;
}

/** Offsets on both sides of the root, found by steps that double. */
function bracket(at, apart, T) {
  let low = Math.min(...apart) - T;
  let high = Math.max(...apart) + T;
  for (let reach = T; at(low).side < 0 && reach < 1e9 * T; reach *= 2) low -= reach;
  for (let reach = T; at(high).side > 0 && reach < 1e9 * T; reach *= 2) high += reach;
  return [low, high];
}
