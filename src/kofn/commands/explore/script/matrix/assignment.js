// Weights F((s − α − β)/T) of a matrix whose rows sum to k and whose columns to their capacity.
//
// Rows have their thresholds α by solver.js, so what is sought are the prices β of the columns, by
// Newton's method, and by the columns' own thresholds where a step of it would overshoot.

import { settled } from "./flow.js";
import { linkOf } from "../links.js";
import { threshold } from "../solver.js";
import { sum } from "../special.js";

const ROUNDS = 150;
const TRIES = 16; // of the lengths of a step
const STALLED = 12; // rounds without progress after which the best prices are taken
const TOLERANCE = 1e-14;
const MATCH = 1e-5; // how far the sums of the margins may be apart, as in kofn

/** The weights of all entries, α per row and what columns have too much, at prices β. */
function rowsAt(link, part, beta, T) {
  const rows = part.scores.map((row, i) => {
    const places = row.map((_, j) => j).filter((j) => part.open[i][j]);
    const found = threshold(link, places.map((j) => row[j] - beta[j]), part.k[i], T);
    const spread = (values) => row.map((_, j) => (part.open[i][j] ? values[places.indexOf(j)] : 0));
    return { p: spread(found.y.map(link.cdf)), slopes: spread(found.y.map(link.pdf)), theta: found.theta };
  });
  const excess = part.c.map((c, j) => sum(rows.map((row) => row.p[j])) - c);
  return { rows, excess, error: Math.max(...excess.map(Math.abs)) };
}

/** The solution of a small system of equations, by elimination. */
function solved(matrix, right) {
  const rows = matrix.map((row, i) => [...row, right[i]]);
  const n = rows.length;
  for (let i = 0; i < n; i++) {
    let best = i;
    for (let h = i + 1; h < n; h++) if (Math.abs(rows[h][i]) > Math.abs(rows[best][i])) best = h;
    [rows[i], rows[best]] = [rows[best], rows[i]];
    for (let h = i + 1; h < n; h++) {
      const factor = rows[h][i] / rows[i][i];
      for (let j = i; j <= n; j++) rows[h][j] -= factor * rows[i][j];
    }
  }
  const x = Array(n).fill(0);
  for (let i = n - 1; i >= 0; i--) {
    x[i] = (rows[i][n] - sum(x.map((each, j) => (j > i ? rows[i][j] * each : 0)))) / rows[i][i];
  }
  return x;
}

/** Newton's step for β: S·step = T·R with S = D_c − Wᵀ·D_r⁻¹·W, damped, and 1 along a constant. */
function newton({ rows, excess, error }, damping, T) {
  const slopes = rows.map((row) => row.slopes);
  const totals = slopes.map(sum);
  const whole = excess.map((_, j) => sum(slopes.map((row) => row[j])));
  const size = whole.map((each) => Math.max(each, 1e-2 * Math.min(error, 1)));
  const extra = damping * Math.min(Math.max(error / 10, 1e-15), 1e-2);
  const matrix = excess.map((_, j) => excess.map((_, h) => {
    const through = sum(slopes.map((row, i) => (totals[i] > 0 ? row[j] * (row[h] / totals[i]) : 0)));
    const level = Math.sqrt(size[j] * size[h]);
    return ((j === h ? whole[j] : 0) - through) / level + (j === h ? extra : 0) + level / sum(size);
  }));
  const step = solved(matrix, excess.map((each, j) => each / Math.sqrt(size[j])));
  return step.map((each, j) => (T * each) / Math.sqrt(size[j]));
}

/** The prices at which columns alone have their sums, at the rows' α. */
function alternated(link, part, { rows }, T) {
  return part.c.map((c, j) => {
    const places = rows.map((_, i) => i).filter((i) => part.open[i][j]);
    return threshold(link, places.map((i) => part.scores[i][j] - rows[i].theta), c, T).theta;
  });
}

/** The prices of an open part. Low temperatures begin at the prices of higher ones. */
function priced(link, part, T) {
  const inside = part.scores.flatMap((row, i) => row.filter((_, j) => part.open[i][j]));
  const spread = Math.max(...inside) - Math.min(...inside);
  let beta = part.c.map(() => 0);
  for (let warm = spread / 8; warm > 2 * T; warm /= 4) beta = search(link, part, beta, warm, 1e-3, 40).beta;
  return search(link, part, beta, T, TOLERANCE, ROUNDS);
}

/** The best prices found in some rounds from given ones. */
function search(link, part, start, T, tolerance, rounds) {
  let now = { beta: start, damping: 1, ...rowsAt(link, part, start, T) };
  let best = now;
  for (let round = 0, stalled = 0; round < rounds && best.error > tolerance && stalled < STALLED; round++) {
    now = nextOf(link, part, now, T);
    stalled = now.error < best.error / 2 || best.error > 1e-9 ? 0 : stalled + 1;
    if (now.error < best.error) best = now;
  }
  return best;
}

/** Better prices: by Newton's step and, where that brought little, by what columns alone would ask. */
function nextOf(link, part, now, T) {
  const step = newton(now, now.damping, T);
  const found = along(link, part, now, step, T) ?? { ...now, damping: Math.min(now.damping * 4, 1e6) };
  if (found.error < now.error / 2) return found;
  const own = alternated(link, part, found, T);
  return along(link, part, found, own.map((each, j) => each - found.beta[j]), T) ?? found;
}

/**
 * Prices along a step, near the least value of the convex function: R·step, its fall, is `gain` at
 * first and about 0 there. A length is multiplied, or an interval cut, until that is so. null if the
 * function does not fall.
 */
function along(link, part, now, step, T) {
  const slope = (excess) => sum(step.map((each, j) => each * excess[j]));
  const gain = slope(now.excess);
  if (!(gain > 0 && gain < Infinity)) return null;
  let [low, high, length, lower] = [0, Infinity, 1, null];
  let [fall, rise] = [gain, 0];
  for (let tries = 0; tries < TRIES; tries++) {
    const beta = now.beta.map((each, j) => each + length * step[j]);
    const damping = Math.min(Math.max(length < 1 ? now.damping * 4 : now.damping / 4, 1e-3), 1e6);
    const next = { beta, damping, ...rowsAt(link, part, beta, T) };
    const rest = slope(next.excess);
    if ((length === 1 && next.error < now.error / 2) || (rest >= -gain / 10 && rest <= gain / 2)) return next;
    if (rest > 0) [low, fall, lower] = [length, rest, next];
    else [high, rise] = [length, rest];
    const cut = fall / (fall - rise);
    length = high === Infinity ? length * 4 : low + (high - low) * Math.min(Math.max(cut, 0.1), 0.9);
  }
  return lower;
}

/** Margins of equal sums; rows and columns without cells take nothing. null if they do not match. */
function margins({ rows, columns }, live) {
  const k = rows.map((each, i) => (live[i].some(Boolean) ? each : 0));
  const c = columns.map((each, j) => (live.some((row) => row[j]) ? each : 0));
  const [total, other] = [sum(k), sum(c)];
  if (Math.abs(total - other) > MATCH * Math.max(total, other)) return null;
  return { k, c: c.map((each) => (other > 0 ? (each * total) / other : 0)) };
}

/** The price of a row or column of settled cells. */
const endOf = (full, live) => {
  const [taken, all] = [full, live].map((row) => row.filter(Boolean).length);
  return all === 0 ? NaN : taken === 0 ? Infinity : taken === all ? -Infinity : NaN;
};

const turned = (matrix) => matrix[0].map((_, j) => matrix.map((row) => row[j]));

/** Of each row, the k cells that are largest less their columns' prices. */
function hardChoice(scores, k, full, open, beta) {
  return scores.map((row, i) => {
    const order = row.map((_, j) => j).filter((j) => open[i][j]);
    order.sort((a, b) => row[b] - beta[b] - (row[a] - beta[a]) || a - b);
    const left = k[i] - full[i].filter(Boolean).length;
    const choice = full[i].map(Number);
    order.forEach((j, rank) => (choice[j] = Math.min(Math.max(left - rank, 0), 1)));
    return choice;
  });
}

/** Weights p, the prices alpha and beta, and the hard choice; p is null if no weights have the margins. */
export function assignment({ matrix, T, link: name, alpha: shape }) {
  const link = linkOf(name, shape);
  const { scores, off } = matrix;
  const live = scores.map((row, i) => row.map((_, j) => !off[i * row.length + j]));
  const given = margins(matrix, live);
  const of = given && settled(live, given.k, given.c);
  if (!of) return { p: null, hard: null, alpha: scores.map(() => NaN), beta: scores[0].map(() => NaN), link };

  const p = of.full.map((row) => row.map(Number));
  const open = live.map((row) => row.map(() => false));
  const alpha = of.full.map((row, i) => endOf(row, live[i]));
  const beta = turned(of.full).map((column, j) => endOf(column, turned(live)[j]));
  for (const { rows, columns } of of.parts) {
    const pick = (values) => rows.map((i) => columns.map((j) => values[i][j]));
    const part = {
      scores: pick(scores),
      open: pick(live),
      k: rows.map((i) => given.k[i] - of.full[i].filter(Boolean).length),
      c: columns.map((j) => given.c[j] - of.full.filter((row) => row[j]).length),
    };
    const found = priced(link, part, T);
    columns.forEach((j, b) => (beta[j] = found.beta[b]));
    rows.forEach((i, a) => {
      alpha[i] = found.rows[a].theta;
      columns.forEach((j, b) => {
        if (!live[i][j]) return;
        open[i][j] = true;
        p[i][j] = found.rows[a].p[b];
      });
    });
  }
  const finite = beta.filter(Number.isFinite);
  const mean = finite.length ? sum(finite) / finite.length : 0;
  const hard = hardChoice(scores, given.k, of.full, open, beta);
  return { p, hard, alpha: alpha.map((a) => a + mean), beta: beta.map((b) => b - mean), open, link };
}
