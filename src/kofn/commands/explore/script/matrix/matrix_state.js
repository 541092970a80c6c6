// The matrix of the page: its scores, its margins, and how they are written in an address.

import { balanced, hundredths, shared } from "./margins.js";
import { between, clamp, numberOf, place, places } from "../numbers.js";

export const MOST = { rows: 8, columns: 6, score: 100 };

export const MATRIX = {
  scores: [[3, 1, 0.4, 0], [2.5, 2, 0.2, 0.9], [2, 0.5, 1.2, 1.6], [3, 2.2, 1.5, 0.1], [1.8, 1.9, 0.3, 0.6], [2.7, 0.4, 1.1, 1]],
  off: Array(24).fill(false), // cells row by row
  rows: [1, 1, 1, 2, 1, 1],
  columns: [2, 2, 1.5, 1.5],
  cell: 0,
};

/** The matrix with a change; masks are those of its shape, and the chosen cell is in it. */
export function changedMatrix(matrix, change) {
  const next = { ...matrix, ...change };
  const size = next.scores.length * next.scores[0].length;
  const off = next.off.length === size ? next.off : Array(size).fill(false);
  return { ...next, off, cell: clamp(next.cell, 0, size - 1) };
}

/** A score to two decimals, no larger than the page shows. */
export const roundScore = (x) => Math.round(clamp(x, -MOST.score, MOST.score) * 100) / 100 + 0;

export const withCell = (matrix, cell, x) => {
  const n = matrix.scores[0].length;
  const scores = matrix.scores.map((row, i) => row.map((old, j) => (i * n + j === cell ? x : old)));
  return { ...matrix, scores };
};

/** Other scores; with the margins if the shape is the same, else one per row and equal columns. */
export function withScores(matrix, scores) {
  const same = scores.length === matrix.scores.length && scores[0].length === matrix.scores[0].length;
  const rows = scores.map(() => 1);
  const equal = () => shared(rows.length, scores[0].map(() => 1), scores.length);
  return changedMatrix(matrix, same ? { scores } : { scores, rows, columns: equal(), off: [] });
}

/** A matrix of another size: its first rows and columns, and new scores by a function. */
export function resized(matrix, m, n, score) {
  const before = matrix.scores[0].length;
  const scores = Array.from({ length: m }, (_, i) => (
    Array.from({ length: n }, (_, j) => matrix.scores[i]?.[j] ?? score())));
  const off = scores.flatMap((row, i) => row.map((_, j) => j < before && Boolean(matrix.off[i * before + j])));
  const rows = scores.map((_, i) => Math.min(matrix.rows[i] ?? 1, n));
  const all = rows.reduce((sum, k) => sum + hundredths(k), 0) / 100;
  const kept = scores[0].map((_, j) => matrix.columns[j] ?? all / n);
  return changedMatrix(matrix, { scores, off, rows, columns: shared(all, kept, m) });
}

/** The rows of scores in a text: a line each, or between semicolons or brackets; Chinese signs, too. */
export function parseMatrix(text) {
  const lines = text.split(/[\n;；[\]]+/).map((line) => line.split(/[\s,，、]+/).filter(Boolean));
  const rows = lines.filter((words) => words.length);
  const scores = rows.map((words) => words.map(numberOf));
  if (!scores.length || scores.some((row) => row.length !== scores[0].length)) {
    return { error: "Write rows of the same length, each on a line or before a semicolon." };
  }
  if (scores.length > MOST.rows || scores[0].length > MOST.columns) {
    const size = `${scores.length} × ${scores[0].length}`;
    return { error: `The page shows up to ${MOST.rows} × ${MOST.columns} scores; these are ${size}.` };
  }
  const wrong = rows.flat().find((_, i) => !(Math.abs(scores.flat()[i]) <= MOST.score));
  if (wrong !== undefined) return { error: `“${wrong.slice(0, 20)}” is not a number from −100 to 100.` };
  return { scores: scores.map((row) => row.map((x) => x + 0)) };
}

/** The parts of an address that hold a matrix. */
export function matrixParts({ scores, off, rows, columns, cell }) {
  const masked = off.flatMap((each, i) => (each ? [i] : []));
  return [
    `s=${scores.map((row) => row.join(",")).join(";")}`,
    ...(masked.length ? [`off=${masked.join(",")}`] : []),
    `rows=${rows.join(",")}`,
    `columns=${columns.join(",")}`,
    `cell=${cell}`,
  ];
}

const numbers = (length, most) => (text) => {
  const found = text.split(",").map(between(0, most));
  return found.length !== length || found.includes(null) ? null : found.map((x) => hundredths(x) / 100);
};

/** Read a matrix by `read(name, key, parse, into)`, which tells what cannot be used. */
export function matrixOf(read) {
  const change = {};
  read("s", "scores", (text) => parseMatrix(text).scores, change);
  const base = withScores(MATRIX, change.scores ?? MATRIX.scores);
  const [m, n] = [base.scores.length, base.scores[0].length];
  read("off", "masked", (text) => places(text, m * n), change);
  read("rows", "rows", numbers(m, n), change);
  const rows = change.rows ?? base.rows;
  const wanted = numbers(n, m);
  // Columns that do not take what the rows give cannot be used.
  read("columns", "columns", (text) => {
    const columns = wanted(text);
    return columns && balanced(rows, columns) ? columns : null;
  }, change);
  read("cell", "cell", place(m * n), change);
  const all = rows.reduce((sum, k) => sum + hundredths(k), 0) / 100;
  const { masked = [], columns = shared(all, base.columns, m), cell = 0 } = change;
  const off = Array.from({ length: m * n }, (_, i) => masked.includes(i));
  return changedMatrix(base, { off, rows, columns, cell });
}
