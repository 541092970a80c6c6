// Margins of a matrix in hundredths, as sliders move them: the columns always take what rows give.

import { clamp } from "../numbers.js";

const UNIT = 100; // whole numbers of hundredths: their sums are exact, and short as text

export const hundredths = (x) => Math.round(x * UNIT);
const total = (values) => values.reduce((sum, x) => sum + hundredths(x), 0);

/** Whether the sums are the same. */
export const balanced = (rows, columns) => total(rows) === total(columns);

/** Shares of an amount in proportion to weights, none above a limit, in real numbers. */
function proportional(amount, weights, most) {
  const shares = weights.map(() => null);
  for (;;) {
    const free = shares.map((_, j) => j).filter((j) => shares[j] === null);
    const left = amount - shares.reduce((sum, each) => sum + (each ?? 0), 0);
    const all = free.reduce((sum, j) => sum + weights[j], 0);
    const share = (j) => (all > 0 ? (left * weights[j]) / all : left / free.length);
    const over = free.filter((j) => share(j) > most);
    if (!over.length) return shares.map((each, j) => each ?? share(j));
    over.forEach((j) => (shares[j] = most));
  }
}

/** Columns that take an amount in proportion to what they took; to hundredths, with that very sum. */
export function shared(amount, columns, most) {
  const units = Math.min(hundredths(amount), hundredths(most) * columns.length);
  const shares = proportional(units, columns.map(hundredths), hundredths(most));
  const whole = shares.map((each) => Math.floor(each + 1e-9));
  let rest = units - whole.reduce((sum, each) => sum + each, 0);
  const order = shares.map((_, j) => j).sort((a, b) => shares[b] - whole[b] - (shares[a] - whole[a]) || a - b);
  for (const j of order) {
    if (rest <= 0) break;
    if (whole[j] < hundredths(most)) {
      whole[j] += 1;
      rest -= 1;
    }
  }
  return whole.map((each) => each / UNIT);
}

/** The matrix with another k of a row; the columns grow or shrink in proportion. */
export function withRow(matrix, i, k) {
  const { scores, rows, columns } = matrix;
  const next = rows.map((old, h) => (h === i ? hundredths(clamp(k, 0, scores[0].length)) / UNIT : old));
  return { ...matrix, rows: next, columns: shared(total(next) / UNIT, columns, scores.length) };
}

/** Between which numbers a column's capacity may be, as the others have to take the rest. */
export function limits({ scores, rows, columns }) {
  const m = scores.length;
  const all = total(rows) / UNIT;
  return [Math.max(0, all - m * (columns.length - 1)), Math.min(m, all)];
}

/** The matrix with another capacity of a column; the other columns share what is left. */
export function withColumn(matrix, j, capacity) {
  const { scores, rows, columns } = matrix;
  const c = hundredths(clamp(capacity, ...limits(matrix))) / UNIT;
  const others = columns.filter((_, h) => h !== j);
  const rest = others.length ? shared((total(rows) - hundredths(c)) / UNIT, others, scores.length) : [];
  return { ...matrix, columns: [...rest.slice(0, j), c, ...rest.slice(j)] };
}
