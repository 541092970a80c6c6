// What the pictures have in common: their frame, the columns of entries, the range of scores.

import { add, each, find, linearScale, roundUp, set } from "./dom.js";

export const LEFT = 40;
export const RIGHT = 12;

/** Widths as measured: to ask for one in the middle of drawing makes the browser lay out anew. */
const widths = new Map();

export const forgetWidths = () => widths.clear();

export function widthOf(element) {
  if (!widths.has(element)) widths.set(element, element.clientWidth);
  return widths.get(element);
}

/** A picture, made as wide as its place: the element and its size in pixels. */
export function canvas(selector, height) {
  const svg = find(selector);
  const width = Math.max(widthOf(svg.parentElement), 200);
  set(svg, { width, height, viewBox: `0 0 ${width} ${height}` });
  return { svg, width, height };
}

/** The column of each entry: its middle and the width of a bar. */
export function columns(width, n) {
  const step = (width - LEFT - RIGHT) / n;
  return {
    step,
    bar: Math.min(Math.max(step * 0.6, 1.5), 44),
    middle: (i) => LEFT + step * (i + 0.5),
  };
}

/** While a score is dragged, the range of scores stands still. */
export const held = { range: null };

/** The range of scores that the pictures show, with room to drag beyond the largest. */
export function range(scores) {
  if (held.range) return held.range;
  const finite = scores.filter(Number.isFinite);
  const low = Math.min(0, ...finite);
  const high = Math.max(0, ...finite);
  const unit = roundUp(Math.max(high - low, 0.5) / 8);
  const outwards = (x) => Math.ceil((Math.abs(x) * 1.001) / unit + 0.6) * unit;
  return [-outwards(low), outwards(high)];
}

/** Horizontal lines with their values at the left. */
export function levels(svg, scale, values, width, text) {
  each(svg, "line", "level", values.map((value) => ({
    x1: LEFT, x2: width - RIGHT, y1: scale(value), y2: scale(value), "data-zero": value === 0 || null,
  })));
  each(svg, "text", "level-text", values.map((value) => ({
    x: LEFT - 8, y: scale(value) + 4, text: text(value),
  })));
}

/** Rectangles over whole columns, which choose an entry when they are clicked. */
export function choosers(svg, column, height, store) {
  const n = store.state.scores.length;
  const { entry } = store.state;
  const areas = Array.from({ length: n }, (_, i) => ({
    x: LEFT + column.step * i, y: 0, width: column.step, height,
    "data-chosen": i === entry || null,
  }));
  each(svg, "rect", "chooser", areas).forEach((rect, i) => {
    rect.onclick = () => store.change({ entry: i });
  });
}

/** A vertical scale between two rows of pixels. */
export const upright = (domain, top, bottom) => linearScale(domain, [bottom, top]);

export const layer = (svg, name) => svg.querySelector(`:scope > .${name}`) ?? add(svg, "g", { class: name });
