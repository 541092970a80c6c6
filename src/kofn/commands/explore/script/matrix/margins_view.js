// The margins: a bar beside each row and below each column, with the weights end to end, which
// reach the knob of k or of the capacity; and the prices.

import { each, fixed, one, set } from "../dom.js";
import { layer } from "../frame.js";
import { limits, withColumn, withRow } from "./margins.js";

export const LENGTH = 80; // of the bars of columns
const THICK = 9;

/** The pieces of a bar: from where to where each weight lies. */
function pieces(weights) {
  let at = 0;
  return weights.map((p) => [at, (at += p)]);
}

export function drawMargins(store, found, svg, at) {
  const { matrix } = store.state;
  // Narrow columns have their numbers alone, and the letters once, at the left.
  const narrow = at.step < 64;
  const decimals = at.step < 34 ? 1 : 2;
  const letter = (name) => (narrow ? "" : `${name} `);
  const [start, end] = [at.right + 12, at.width - 10];
  const across = (x) => start + (x / at.n) * (end - start);
  const base = at.bottom + 16 + LENGTH;
  const up = (x) => base - (x / at.m) * LENGTH;
  const rows = matrix.rows.map((k, i) => ({
    value: k,
    weights: found.p?.[i] ?? [],
    rect: ([from, to]) => ({ x: across(from), width: across(to) - across(from) }),
    box: { y: at.top + (i + 0.5) * at.height - THICK / 2, height: THICK },
    room: { x: start, width: end - start },
    knob: [across(k), at.top + (i + 0.5) * at.height],
    texts: [
      { x: start, y: at.top + (i + 0.5) * at.height - 11, text: `k ${fixed(k, 2)}` },
      { x: start, y: at.top + (i + 0.5) * at.height + 21, text: `α ${fixed(found.alpha[i], 3)}` },
    ],
    name: `k of row ${i}`,
    price: `price α ${fixed(found.alpha[i], 3)}`,
    ends: [0, at.n],
    now: (state) => state.rows[i],
    set: (from, x) => withRow(from, i, x),
    move: (dx) => (dx / (end - start)) * at.n,
  }));
  const columns = matrix.columns.map((c, j) => {
    const middle = at.left + (j + 0.5) * at.step;
    return {
      value: c,
      weights: found.p?.map((row) => row[j]) ?? [],
      rect: ([from, to]) => ({ y: up(to), height: up(from) - up(to) }),
      box: { x: middle - THICK / 2, width: THICK },
      room: { y: up(at.m), height: LENGTH },
      knob: [middle, up(c)],
      texts: [
        { x: middle, y: base + 18, text: letter("c") + fixed(c, decimals) },
        { x: middle, y: base + 36, text: letter("β") + fixed(found.beta[j], narrow ? decimals : 3) },
      ],
      name: `Capacity of column ${j}`,
      price: `price β ${fixed(found.beta[j], 3)}`,
      ends: limits(matrix),
      now: (state) => state.columns[j],
      set: (from, x) => withColumn(from, j, x),
      move: (dx, dy) => (-dy / LENGTH) * at.m,
      upright: true,
      tiny: at.step < 34,
    };
  });
  each(layer(svg, "letters"), "text", "tick", (narrow ? ["c", "β"] : []).map((text, line) => ({
    x: at.left / 2 - 2, y: base + 18 * (line + 1), text,
  })));
  drawBars(store, set(layer(svg, "row-bars"), { role: "group", "aria-label": "k of rows" }), rows);
  drawBars(store, set(layer(svg, "column-bars"), { role: "group", "aria-label": "Capacities of columns" }), columns);
}

function drawBars(store, group, bars) {
  each(group, "rect", "room", bars.map((bar) => ({ ...bar.room, ...bar.box })));
  each(group, "rect", "piece", bars.flatMap((bar) => pieces(bar.weights).map((ends) => {
    const rect = bar.rect(ends);
    const side = bar.upright ? "height" : "width";
    return { ...bar.box, ...rect, [side]: Math.max(rect[side] - 1, 0) };
  })));
  each(group, "text", "margin-text", bars.flatMap((bar) => bar.texts.map((text) => ({
    ...text, "data-upright": bar.upright || null, "data-tiny": bar.tiny || null,
  }))));
  const knobs = each(group, "g", "margin-knob", bars.map((bar) => ({
    transform: `translate(${bar.knob[0]} ${bar.knob[1]})`,
    role: "slider",
    tabindex: 0,
    "data-upright": bar.upright || null,
    "aria-orientation": bar.upright ? "vertical" : "horizontal",
    "aria-label": bar.name,
    "aria-valuemin": bar.ends[0],
    "aria-valuemax": bar.ends[1],
    "aria-valuenow": bar.value,
    "aria-valuetext": `${fixed(bar.value, 2)}, ${bar.price}`,
  })));
  knobs.forEach((knob, i) => {
    one(knob, "circle", "reach", { r: 16 });
    one(knob, "circle", "handle", { r: 7 });
    grip(store, knob, bars[i]);
  });
}

/** Let a margin be dragged. Each move starts from the margins as they were: nothing adds up. */
function grip(store, knob, bar) {
  knob.onpointerdown = (event) => {
    if (event.button) return;
    knob.setPointerCapture(event.pointerId);
    knob.focus({ preventScroll: true });
    store.stop();
    const from = store.state.matrix;
    const value = bar.now(from);
    knob.onpointermove = (now) => {
      if (!knob.hasPointerCapture(now.pointerId)) return;
      const way = bar.move(now.clientX - event.clientX, now.clientY - event.clientY);
      const fine = now.shiftKey ? 100 : 20; // to 0.05, or to 0.01 with Shift
      store.change({ matrix: bar.set(from, Math.round((value + way) * fine) / fine) });
    };
    event.preventDefault();
  };
  knob.ontouchstart = (event) => event.preventDefault(); // or the page would scroll instead
  knob.onkeydown = (event) => pressed(store, bar, event);
}

const STEPS = { ArrowUp: 0.1, ArrowRight: 0.1, ArrowDown: -0.1, ArrowLeft: -0.1, PageUp: 1, PageDown: -1 };

function pressed(store, bar, event) {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const end = { Home: -Infinity, End: Infinity }[event.key];
  if (end === undefined && !(event.key in STEPS)) return;
  const { matrix } = store.state; // which may be newer than the picture
  const to = end ?? bar.now(matrix) + STEPS[event.key] / (event.shiftKey ? 10 : 1);
  store.change({ matrix: bar.set(matrix, to) });
  event.preventDefault();
}
