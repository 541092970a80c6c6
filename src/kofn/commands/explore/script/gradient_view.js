// The row of the Jacobian that belongs to the chosen weight.

import { each, find, fixed, roundUp, set, short, weightText } from "./dom.js";
import { canvas, choosers, columns, layer, levels, upright } from "./frame.js";

const HEIGHT = 130;
const [TOP, BOTTOM] = [16, HEIGHT - 12];

export function drawGradient(store, found) {
  const { entry } = store.state;
  const { row, dk, dT } = found.gradient;
  const { svg, width } = canvas("#gradient", HEIGHT);
  const column = columns(width, row.length);
  const most = Math.max(...row.map(Math.abs));
  const moves = most > 1e-12;
  const end = moves ? roundUp(most * 1.02) : 1;
  const scale = upright([-end, end], TOP, BOTTOM);
  choosers(layer(svg, "areas"), column, HEIGHT, store);
  const text = (x) => (Math.abs(x) < 0.001 && x ? x.toExponential(0).replaceAll("-", "\u2212") : short(x));
  levels(layer(svg, "levels"), scale, [-end, 0, end], width, text);
  const zero = scale(0);
  each(layer(svg, "bars"), "rect", "slope", row.map((slope, i) => ({
    x: column.middle(i) - column.bar / 2,
    width: column.bar,
    y: Math.min(zero, scale(slope)),
    height: Math.abs(scale(slope) - zero),
    "data-chosen": i === entry || null,
    "data-down": slope < 0 || null,
  })));
  const numbers = row.map((slope, i) => ({
    x: column.middle(i),
    y: slope < 0 ? Math.min(scale(slope) + 13, HEIGHT - 1) : Math.max(scale(slope) - 5, 10),
    text: column.step >= 46 && moves ? weightText(slope, 3) : "",
  }));
  each(layer(svg, "numbers"), "text", "number", numbers);
  set(find("#gradient-entry"), { text: String(entry) });
  set(find("#by-k"), { text: fixed(dk) });
  set(find("#by-T"), { text: fixed(dT) });
  set(find("#no-gradient"), { hidden: moves ? "" : null });
}
