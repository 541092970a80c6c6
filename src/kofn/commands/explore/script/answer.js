// Everything that the explorer shows of one state, as kofn defines it, special cases included.

import { linkOf } from "./links.js";
import { threshold } from "./solver.js";
import { logSumExp, sum } from "./special.js";
import { marginals } from "./subset.js";

const inPlay = (state) => state.scores.map((x, i) => !state.off[i] && x !== -Infinity);

/**
 * Weights in [0, 1] that sum to k, θ, and what gradients need: the density of each entry and its
 * share of all densities.
 */
export function soften(state) {
  const { scores, k, T } = state;
  const link = linkOf(state.link, state.alpha);
  const live = inPlay(state);
  const left = live.filter(Boolean).length;
  const zeros = scores.map(() => 0);
  const still = { density: zeros, share: zeros, interval: null, y: scores.map(() => NaN), link };
  const whole = live.map(Number);

  if (k === 0) return { ...still, p: zeros, q: scores.map(() => 1), theta: Infinity };
  if (k >= left) {
    const theta = left ? -Infinity : NaN;
    return { ...still, p: whole, q: whole.map((each) => 1 - each), theta };
  }
  const top = scores.map((x, i) => live[i] && x === Infinity);
  const sure = top.filter(Boolean).length;
  if (sure >= k) return shared(still, top, k, sure);

  const places = scores.map((_, i) => i).filter((i) => live[i] && !top[i]);
  const found = threshold(link, places.map((i) => scores[i]), k - sure, T);
  const logs = found.y.map(link.logPdf);
  const total = logSumExp(logs);
  const spread = (values, rest) => {
    const row = [...rest];
    places.forEach((place, i) => (row[place] = values[i]));
    return row;
  };
  return {
    p: spread(found.y.map(link.cdf), top.map(Number)),
    q: spread(found.y.map(link.sf), top.map((each) => 1 - each)),
    theta: found.theta,
    interval: found.interval,
    y: spread(found.y, still.y),
    density: spread(found.y.map(link.pdf), zeros),
    share: spread(logs.map((log) => (total === -Infinity ? 0 : Math.exp(log - total))), zeros),
    link,
  };
}

/** Scores of +∞ that share k evenly. */
function shared(still, top, k, count) {
  const p = top.map((each) => (each ? k / count : 0));
  const share = top.map((each) => (each ? 1 / count : 0));
  return { ...still, p, q: p.map((each) => 1 - each), theta: Infinity, share };
}

/** The smoothed sum of the k largest, S_k = Σ px − TΣΩ(p). */
export function smoothedSum(state, soft) {
  const terms = state.scores.map((x, i) => {
    const choice = soft.p[i] === 0 ? 0 : soft.p[i] * x;
    const y = soft.y[i];
    return choice - (Number.isNaN(y) ? 0 : state.T * soft.link.omega(soft.p[i], y));
  });
  return sum(terms);
}

/** ∂p_i/∂x for all scores, ∂p_i/∂k and ∂p_i/∂T. */
export function gradientOf(state, soft, i) {
  const { T } = state;
  const chosen = soft.density[i];
  const row = soft.share.map((share, j) => (chosen * ((i === j) - share)) / T || 0);
  const dT = -sum(row.map((each, j) => each && each * (soft.y[j] + soft.link.edge)));
  return { row, dk: soft.share[i], dT: dT || 0 };
}

/** The k largest, ties to the lowest index; the fraction of k is the weight of the next. */
export function hardTopk(state) {
  const live = inPlay(state);
  const order = state.scores.map((_, i) => i).filter((i) => live[i]);
  order.sort((a, b) => (state.scores[a] === state.scores[b] ? a - b : state.scores[b] > state.scores[a] ? 1 : -1));
  const hard = state.scores.map(() => 0);
  order.forEach((i, rank) => (hard[i] = Math.min(Math.max(state.k - rank, 0), 1)));
  return hard;
}

/** Probability of each entry to be in a KSubset of logits x/T; null if k is not whole. */
export function subsetMarginals(state) {
  if (!Number.isInteger(state.k)) return null;
  const live = inPlay(state);
  return marginals(state.scores.map((x, i) => (live[i] ? x / state.T : -Infinity)), state.k);
}

/** All of it. */
export function answer(state) {
  const soft = soften(state);
  return {
    ...soft,
    sum: smoothedSum(state, soft),
    hard: hardTopk(state),
    marginals: subsetMarginals(state),
    gradient: gradientOf(state, soft, state.entry),
  };
}

/** The weights at other temperatures: a row of them for each. */
export const path = (state, temperatures) =>
  temperatures.map((T) => soften({ ...state, T }).p);

