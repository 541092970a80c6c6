// All numbers as a table, in which scores, masks and the chosen entry can be changed, too.

import { add, find, fixed, set, short, weightText } from "./dom.js";
import { numberOf } from "./numbers.js";
import { writeScores } from "./state.js";

const COLUMNS = ["p", "hard", "marginal", "slope"];

function newRow(store, body, i) {
  const row = add(body, "tr");
  const head = add(row, "th", { scope: "row" });
  const choice = add(head, "input", { type: "radio", name: "entry", "aria-label": `Gradient of weight ${i}` });
  choice.onchange = () => store.change({ entry: i });
  add(head, "span", { text: String(i) });
  const mask = add(add(row, "td"), "input", { type: "checkbox", "aria-label": `Entry ${i} takes part` });
  mask.onchange = () => store.mask(i, !mask.checked);
  const score = add(add(row, "td"), "input", { inputmode: "decimal", "aria-label": `Score of entry ${i}` });
  const take = () => {
    const x = numberOf(score.value);
    const good = !Number.isNaN(x) && (Math.abs(x) <= 1e6 || !Number.isFinite(x));
    set(score, { "aria-invalid": good ? null : "true" });
    if (good) store.change({ scores: store.state.scores.map((old, j) => (i === j ? x : old)) });
  };
  score.oninput = take;
  score.onblur = () => {
    set(score, { "aria-invalid": null });
    score.value = writeScores([store.state.scores[i]]);
  };
  for (const name of COLUMNS) add(row, "td", { class: name });
  return row;
}

export function drawTable(store, found) {
  const { scores, off, entry } = store.state;
  const body = find("#numbers tbody");
  while (body.rows.length > scores.length) body.lastElementChild.remove();
  while (body.rows.length < scores.length) newRow(store, body, body.rows.length);
  const decimals = innerWidth < 480 ? 3 : 4;
  [...body.rows].forEach((row, i) => {
    const [choice, mask, score] = row.querySelectorAll("input");
    choice.checked = i === entry;
    mask.checked = !off[i];
    if (document.activeElement !== score) score.value = writeScores([scores[i]]);
    set(row, { "data-chosen": i === entry || null, "data-off": off[i] || null });
    const numbers = [found.p[i], found.hard[i], found.marginals?.[i] ?? null, found.gradient.row[i]];
    const texts = numbers.map((x, j) => (COLUMNS[j] === "hard" ? short(Number(x.toFixed(4))) : weightText(x, decimals)));
    COLUMNS.forEach((name, j) => set(row.querySelector(`.${name}`), { text: texts[j] }));
  });
  const total = (values) => (values ? fixed(values.reduce((sum, x) => sum + x, 0), decimals) : "–");
  set(find("#total-p"), { text: total(found.p) });
  set(find("#total-hard"), { text: short(Number(found.hard.reduce((sum, x) => sum + x, 0).toFixed(4))) });
  set(find("#total-marginal"), { text: total(found.marginals) });
  set(find("#total-slope"), { text: total(found.gradient.row) });
}
