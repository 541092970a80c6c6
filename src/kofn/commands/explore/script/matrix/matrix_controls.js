// Buttons of the matrix, scores that are pasted, and what is said beside the pictures.

import { drawCurve } from "../curve_view.js";
import { find, fixed, set } from "../dom.js";
import { MOST, parseMatrix, resized, withScores } from "./matrix_state.js";

export function setUpMatrix(store, normal) {
  const matrix = () => store.state.matrix;
  const size = () => [matrix().scores.length, matrix().scores[0].length];
  const resize = (down, right) => {
    const [m, n] = size();
    store.change({ matrix: resized(matrix(), m + down, n + right, normal) });
  };
  find("#fewer-rows").onclick = () => resize(-1, 0);
  find("#more-rows").onclick = () => resize(1, 0);
  find("#fewer-columns").onclick = () => resize(0, -1);
  find("#more-columns").onclick = () => resize(0, 1);
  find("#random-matrix").onclick = () => (
    store.change({ matrix: withScores(matrix(), matrix().scores.map((row) => row.map(normal))) }));

  /** Rows of numbers that are pasted become the scores. */
  return function paste(text) {
    const { scores, error } = parseMatrix(text);
    set(find("#matrix-error"), { text: error ?? "" });
    if (scores) store.change({ matrix: withScores(matrix(), scores) });
  };
}

/** The sizes that the steppers show, and the values of both choices. */
export function drawMatrixReadouts({ state }, found) {
  const { scores, columns } = state.matrix;
  const [m, n] = [scores.length, scores[0].length];
  set(find("#rows-count"), { text: `${m} rows` });
  set(find("#columns-count"), { text: `${n} columns` });
  find("#fewer-rows").disabled = m <= 1;
  find("#more-rows").disabled = m >= MOST.rows;
  find("#fewer-columns").disabled = n <= 1;
  find("#more-columns").disabled = n >= MOST.columns;
  set(find("#impossible"), { hidden: found.p ? "" : null });
  const value = (choice) => {
    const taken = (p, x) => (p ? p * x : 0);
    const all = choice?.flatMap((row, i) => row.map((p, j) => taken(p, scores[i][j])));
    return fixed(all ? all.reduce((sum, x) => sum + x, 0) : NaN);
  };
  set(find("#soft-value"), { text: value(found.p) });
  set(find("#hard-value"), { text: value(found.hard) });
  const loads = columns.map((_, j) => found.hard?.reduce((sum, row) => sum + row[j], 0) ?? NaN);
  set(find("#loads"), { text: loads.map((x) => (Number.isNaN(x) ? "–" : String(Number(x.toFixed(2))))).join(", ") });
}

/** All cells on F, at their scores less both prices; settled ones at its ends. */
export function drawMatrixCurve(store, found) {
  const { matrix, T } = store.state;
  const p = found.p ?? matrix.scores.map((row) => row.map(() => 0));
  const net = matrix.scores.flatMap((row, i) => row.map((x, j) => {
    if (found.open?.[i][j]) return x - found.alpha[i] - found.beta[j];
    return p[i][j] ? Infinity : -Infinity;
  }));
  const change = ({ entry }) => store.change({ matrix: { ...store.state.matrix, cell: entry } });
  const state = { scores: net, off: matrix.off, entry: matrix.cell, T };
  drawCurve({ state, change }, { p: p.flat(), theta: 0, link: found.link, interval: null }, "#matrix-curve");
}
