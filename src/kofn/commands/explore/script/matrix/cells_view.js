// The matrix: cells as dark as their weights are large. A cell is dragged, or moved with keys.

import { each, fixed, one, set, weightText } from "../dom.js";
import { canvas, layer } from "../frame.js";
import { LENGTH, drawMargins } from "./margins_view.js";
import { roundScore, withCell } from "./matrix_state.js";

const HEIGHT = 54; // of a cell
const PIXEL = 0.02; // what the score changes by
const TOP = 22;

/** Where the cells, and the bars beside and below, are. */
function placesOf(width, m, n) {
  const left = 24;
  const right = width < 480 ? 96 : 168;
  const step = (width - left - right) / n;
  return { left, top: TOP, step, height: HEIGHT, right: left + n * step, bottom: TOP + m * HEIGHT, width, m, n };
}

export function drawMatrix(store, found) {
  const { matrix } = store.state;
  const [m, n] = [matrix.scores.length, matrix.scores[0].length];
  const { svg, width } = canvas("#matrix", TOP + m * HEIGHT + LENGTH + 60);
  const at = placesOf(width, m, n);
  each(layer(svg, "heads"), "text", "tick", [
    ...matrix.columns.map((_, j) => ({ x: at.left + at.step * (j + 0.5), y: TOP - 8, text: String(j) })),
    ...matrix.rows.map((_, i) => ({ x: at.left / 2 - 2, y: TOP + HEIGHT * (i + 0.5) + 4, text: String(i) })),
  ]);
  drawCells(store, found, svg, at);
  drawMargins(store, found, svg, at);
}

const hidden = (yes) => (yes ? "hidden" : null);

function drawCells(store, found, svg, at) {
  const { scores, off, cell } = store.state.matrix;
  const group = set(layer(svg, "cells"), { role: "group", "aria-label": "Scores of the matrix" });
  const list = scores.flatMap((row, i) => row.map((x, j) => ({ x, i, j, p: found.p?.[i][j] ?? NaN, hard: found.hard?.[i][j] })));
  const told = ({ x, p }) => `${fixed(x, 2)}, weight ${fixed(p)}`;
  const cells = each(group, "g", "cell", list.map((each, index) => ({
    transform: `translate(${at.left + each.j * at.step} ${at.top + each.i * at.height})`,
    role: "slider",
    tabindex: index === cell ? 0 : -1,
    "aria-label": `Score of row ${each.i}, column ${each.j}${off[index] ? ", masked" : ""}`,
    "aria-valuemin": -100,
    "aria-valuemax": 100,
    "aria-valuenow": each.x,
    "aria-valuetext": told(each),
    "data-off": off[index] || null,
    "data-chosen": index === cell || null,
  })));
  const size = at.step < 34 ? "tiny" : at.step < 60 ? "narrow" : null;
  const write = (p) => (size === "tiny" ? weightText(p, 2).replace("0.", ".") : weightText(p, at.step < 44 ? 2 : 3));
  cells.forEach((element, index) => {
    const { x, p, hard } = list[index];
    const box = { x: 2, y: 2, width: at.step - 4, height: at.height - 4, rx: 6 };
    one(element, "rect", "ground", box);
    one(element, "rect", "shade", { ...box, "fill-opacity": (p || 0).toFixed(3) });
    one(element, "rect", "taken", {
      x: 5, y: 5, width: at.step - 10, height: at.height - 10, rx: 4,
      visibility: hidden(!hard), "data-part": (hard > 0 && hard < 1) || null,
    });
    one(element, "text", "weight-text", { x: at.step / 2, y: 25, text: write(p), "data-size": size });
    one(element, "text", "score-text", { x: at.step / 2, y: 42, text: fixed(x, size === "tiny" ? 1 : 2), "data-size": size });
    one(element, "rect", "mark-cell", { ...box, x: 1, y: 1, width: at.step - 2, height: at.height - 2 });
    grip(store, element, index);
  });
}

/** Let a cell be dragged: to the right or up for more. Fingers move it sideways, and scroll up and down. */
function grip(store, element, index) {
  element.onpointerdown = (event) => {
    if (event.button) return;
    element.setPointerCapture(event.pointerId);
    element.focus({ preventScroll: true });
    store.stop();
    const { matrix } = store.state;
    const from = matrix.scores.flat()[index];
    const to = (way) => store.change({ matrix: withCell(store.state.matrix, index, roundScore(from + PIXEL * way)) });
    const touched = event.pointerType === "touch";
    element.onpointermove = (now) => {
      if (!element.hasPointerCapture(now.pointerId)) return;
      to(now.clientX - event.clientX - (touched ? 0 : now.clientY - event.clientY));
    };
    element.onpointercancel = () => to(0); // the finger scrolls
    store.change({ matrix: { ...matrix, cell: index } });
    event.preventDefault();
  };
  element.onfocus = () => choose(store, index);
  element.onkeydown = (event) => pressed(store, index, event);
}

const choose = (store, cell) =>
  store.state.matrix.cell !== cell && store.change({ matrix: { ...store.state.matrix, cell } });

const STEPS = { ArrowUp: 0.1, ArrowDown: -0.1, PageUp: 1, PageDown: -1 };

/** Arrows up and down move the score, left and right go through the cells row by row. */
function pressed(store, index, event) {
  const { matrix } = store.state;
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const last = matrix.off.length - 1;
  const to = { ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: last }[event.key];
  if (to !== undefined) {
    const next = Math.min(Math.max(to, 0), last);
    choose(store, next);
    document.querySelectorAll("#matrix .cell")[next].focus({ preventScroll: true });
  } else if (event.key in STEPS) {
    const x = matrix.scores.flat()[index] + STEPS[event.key] / (event.shiftKey ? 10 : 1);
    store.change({ matrix: withCell(matrix, index, roundScore(x)) });
  } else if (event.key === "m" || event.key === "M") {
    store.change({ matrix: { ...matrix, off: matrix.off.map((each, i) => (i === index ? !each : each)) } });
  } else return;
  event.preventDefault();
}
