// The matrix as a table, in which scores and margins can be written, with the weights and prices.

import { add, find, fixed, set, weightText } from "../dom.js";
import { numberOf } from "../numbers.js";
import { limits, withColumn, withRow } from "./margins.js";
import { MOST, withCell } from "./matrix_state.js";

/** A field for one number; `take` has the matrix with a new one. */
function field(store, parent, label, ends, take) {
  const input = add(parent, "input", { inputmode: "decimal", "aria-label": label });
  input.oninput = () => {
    const x = numberOf(input.value);
    const [low, high] = ends();
    const good = x >= low && x <= high;
    set(input, { "aria-invalid": good ? null : "true" });
    if (good) store.change({ matrix: take(store.state.matrix, x) });
  };
  input.onblur = () => {
    set(input, { "aria-invalid": null });
    store.change({});
  };
}

function build(store, table, m, n) {
  table.replaceChildren();
  const head = add(add(table, "thead"), "tr");
  ["row", ...Array.from({ length: n }, (_, j) => `column ${j}`), "k", "sum", "α"].forEach((text) => (
    add(head, "th", { scope: "col", text })));
  const body = add(table, "tbody");
  for (let i = 0; i < m; i++) {
    const row = add(body, "tr");
    add(row, "th", { scope: "row", text: String(i) });
    for (let j = 0; j < n; j++) {
      const cell = add(row, "td");
      const ends = () => [-MOST.score, MOST.score];
      field(store, cell, `Score of row ${i}, column ${j}`, ends, (matrix, x) => withCell(matrix, i * n + j, x + 0));
      add(cell, "span", { class: "p" });
    }
    field(store, add(row, "td"), `k of row ${i}`, () => [0, n], (matrix, x) => withRow(matrix, i, x));
    add(row, "td", { class: "row-sum" });
    add(row, "td", { class: "alpha" });
  }
  const foot = add(table, "tfoot");
  const line = (name) => {
    const row = add(foot, "tr");
    add(row, "th", { scope: "row", text: name });
    return row;
  };
  const capacities = line("capacity");
  for (let j = 0; j < n; j++) {
    const ends = () => limits(store.state.matrix);
    field(store, add(capacities, "td"), `Capacity of column ${j}`, ends, (matrix, x) => withColumn(matrix, j, x));
  }
  add(capacities, "td", { class: "all", colspan: 3 });
  for (const [name, kind] of [["sum", "column-sum"], ["β", "beta"]]) {
    const row = line(name);
    for (let j = 0; j < n; j++) add(row, "td", { class: kind });
    add(row, "td", { colspan: 3 });
  }
}

export function drawMatrixTable(store, found) {
  const { scores, rows, columns, off } = store.state.matrix;
  const table = find("#matrix-numbers table");
  const [m, n] = [scores.length, scores[0].length];
  if (table.dataset.size !== `${m},${n}`) build(store, table, m, n);
  table.dataset.size = `${m},${n}`;
  const values = [...scores.flatMap((row, i) => [...row, rows[i]]), ...columns];
  table.querySelectorAll("input").forEach((input, i) => {
    if (document.activeElement !== input && input.value !== String(values[i])) input.value = String(values[i]);
  });
  const write = (name, texts) => table.querySelectorAll(`.${name}`).forEach((each, i) => set(each, { text: texts[i] }));
  const p = found.p ?? scores.map((row) => row.map(() => NaN));
  write("p", p.flat().map((x) => weightText(x, 4)));
  table.querySelectorAll(".p").forEach((each, i) => set(each, { "data-off": off[i] || null }));
  const sum = (list) => list.reduce((all, x) => all + x, 0);
  write("row-sum", p.map((row) => fixed(sum(row), 3)));
  write("column-sum", columns.map((_, j) => fixed(sum(p.map((row) => row[j])), 3)));
  write("alpha", found.alpha.map((x) => fixed(x, 4)));
  write("beta", found.beta.map((x) => fixed(x, 4)));
  write("all", [`Σk = Σc = ${fixed(sum(rows), 2)}`]);
}
