// The weights as bars, what they are beside the hard choice and a KSubset, and their sum.

import { each, fixed, one, set, weightText } from "./dom.js";
import { LEFT, RIGHT, canvas, choosers, columns, layer, levels, upright } from "./frame.js";

const HEIGHT = 200;
const [TOP, BOTTOM] = [22, HEIGHT - 6];

export function drawWeights(store, found) {
  const { entry } = store.state;
  const { svg, width } = canvas("#weights", HEIGHT);
  const scale = upright([0, 1], TOP, BOTTOM);
  const column = columns(width, found.p.length);
  choosers(layer(svg, "areas"), column, HEIGHT, store);
  levels(layer(svg, "levels"), scale, [0, 0.5, 1], width, (x) => ({ 0.5: "½" })[x] ?? String(x));
  const left = (i) => column.middle(i) - column.bar / 2;
  const bar = (p, i) => ({
    x: left(i), width: column.bar, y: scale(p), height: BOTTOM - scale(p), "data-chosen": i === entry || null,
  });
  const group = layer(svg, "bars");
  each(group, "rect", "weight", found.p.map(bar));
  const gap = Math.min(3, column.step / 8);
  const outline = (p, i) => ({
    x: left(i) - gap, width: column.bar + 2 * gap, y: scale(p) - gap, height: BOTTOM - scale(p) + gap,
    rx: gap, visibility: p ? null : "hidden",
  });
  each(group, "rect", "hard", found.hard.map(outline));
  const marginals = found.marginals ?? [];
  const wing = Math.min(column.bar / 2 + 4, column.step / 2);
  each(group, "line", "marginal", marginals.map((p, i) => ({
    x1: column.middle(i) - wing, x2: column.middle(i) + wing, y1: scale(p), y2: scale(p),
    visibility: p > 0.004 ? null : "hidden", // on the ground it would hide the ground
  })));
  drawNumbers(layer(svg, "numbers"), found, entry, column, scale);
  drawSum(store.state, found);
}

/** A number on each bar where there is room, and on the chosen one always. */
function drawNumbers(group, found, entry, column, scale) {
  const roomy = column.step >= 40;
  const decimals = column.step >= 50 ? 3 : 2;
  each(group, "text", "number", found.p.map((p, i) => ({
    x: column.middle(i),
    y: scale(Math.max(p, found.hard[i], found.marginals?.[i] ?? 0)) - 8,
    text: roomy || i === entry ? weightText(p, decimals) : "",
    "data-chosen": i === entry || null,
  })));
}

/** The weights end to end: as long as k. */
function drawSum(state, found) {
  const { svg, width } = canvas("#sum", 46);
  const n = state.scores.length;
  const unit = (width - LEFT - RIGHT) / n;
  const starts = [];
  found.p.reduce((total, p) => (starts.push(total), total + p), 0);
  const group = layer(svg, "pieces");
  one(group, "rect", "room", { x: LEFT, y: 4, width: n * unit, height: 14 });
  each(group, "rect", "piece", found.p.map((p, i) => ({
    x: LEFT + starts[i] * unit, y: 4, width: Math.max(p * unit - Math.min(1, (p * unit) / 4), 0), height: 14,
    "data-chosen": i === state.entry || null,
  })));
  const at = LEFT + state.k * unit;
  const near = Math.min(Math.max(at, LEFT + 40), width - RIGHT - 40);
  one(group, "line", "mark", { x1: at, x2: at, y1: 0, y2: 24 });
  const total = found.p.reduce((sum, p) => sum + p, 0);
  const text = one(group, "text", "mark-text", { x: near, y: 39 });
  const equal = Math.abs(total - state.k) < 1e-9 ? " = k" : total ? ", all that is left" : ", for nothing takes part";
  set(text, { text: `Σp = ${fixed(total)}${equal}` });
}
