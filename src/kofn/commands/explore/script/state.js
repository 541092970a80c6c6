// What the page shows, and how it is written: in the address of the page and in text fields.

import { LINK_NAMES } from "./links.js";
import { MATRIX, changedMatrix, matrixOf, matrixParts } from "./matrix/matrix_state.js";
import { between, clamp, numberOf, place, places } from "./numbers.js";

export const MOST_ENTRIES = 64;
const LARGEST_SCORE = 1e6;
export const LIMITS = { T: [0.01, 100], alpha: [1, 4] };

const VIEWS = ["row", "matrix"];

export const START = {
  view: "row",
  scores: [3.1, 2.5, 1.7, 1.5, 1, 0.3, -0.5, -1.8],
  off: Array(8).fill(false),
  k: 3,
  T: 0.5,
  link: "logistic",
  alpha: 1.5,
  entry: 2,
  matrix: MATRIX,
};

/** The state with a change; masks and the chosen entry follow the number of scores. */
export function changed(state, change) {
  const next = { ...state, ...change };
  const n = next.scores.length;
  return {
    ...next,
    off: next.scores.map((_, i) => Boolean(next.off[i])),
    k: clamp(next.k, 0, n),
    T: clamp(next.T, ...LIMITS.T),
    alpha: clamp(next.alpha, ...LIMITS.alpha),
    entry: clamp(next.entry, 0, n - 1),
    matrix: changedMatrix(state.matrix, next.matrix),
  };
}

/** The scores in a text: numbers between commas (Chinese ones, too), white space, brackets or semicolons. */
export function parseScores(text) {
  const words = text.split(/[\s,;[\](){}|，、；]+/).filter(Boolean);
  if (!words.length) return { error: "Write at least one number." };
  if (words.length > MOST_ENTRIES) {
    return { error: `The page shows up to ${MOST_ENTRIES} scores; these are ${words.length}.` };
  }
  const scores = words.map(numberOf);
  const wrong = scores.findIndex((x) => Number.isNaN(x) || (Number.isFinite(x) && Math.abs(x) > LARGEST_SCORE));
  if (wrong >= 0) return { error: `“${words[wrong].slice(0, 20)}” is not a number from −10⁶ to 10⁶.` };
  return { scores: scores.map((x) => x + 0) };
}

const spelled = (x) => (Number.isFinite(x) ? String(x) : x > 0 ? "inf" : "-inf");

export const writeScores = (scores) => scores.map(spelled).join(", ");

/** The view that is shown as the part of an address after #. */
export function toHash(state) {
  const matrix = state.view === "matrix";
  const off = state.off.flatMap((each, i) => (each ? [i] : []));
  const parts = matrix ? ["view=matrix", ...matrixParts(state.matrix)] : [`x=${state.scores.map(spelled).join(",")}`];
  if (off.length && !matrix) parts.push(`off=${off.join(",")}`);
  if (!matrix) parts.push(`k=${state.k}`);
  parts.push(`T=${state.T}`, `link=${state.link}`);
  if (state.link === "entmax") parts.push(`alpha=${state.alpha}`);
  if (!matrix) parts.push(`entry=${state.entry}`);
  return `#${parts.join("&")}`;
}

/** What an address says of a row of scores. */
function rowOf(read) {
  const change = {};
  read("x", "scores", (text) => parseScores(text).scores, change);
  const n = (change.scores ?? START.scores).length;
  read("off", "masked", (text) => places(text, n), change);
  read("k", "k", between(0, n), change);
  const { masked = [], ...rest } = change;
  return { ...rest, off: Array.from({ length: n }, (_, i) => masked.includes(i)) };
}

/**
 * The state in an address, and the parts of it that cannot be used; these keep their usual values.
 * The view that is not shown stays as it is in `before`. An address without a part of ours gives
 * no state.
 */
export function fromHash(hash, before = START) {
  const given = new URLSearchParams(hash.replace(/^#/, "").replace(/\+/g, "%2B"));
  const wrong = [];
  let ours = false;
  const read = (name, key, parse, change) => {
    if (!given.has(name)) return;
    const value = parse(given.get(name));
    if (value === null || value === undefined) wrong.push(`${name}=${given.get(name).slice(0, 30)}`);
    else {
      change[key] = value;
      ours = true;
    }
  };
  const common = {};
  read("view", "view", (text) => (VIEWS.includes(text) ? text : null), common);
  const matrix = common.view === "matrix";
  const own = matrix ? { matrix: matrixOf(read) } : rowOf(read);
  read("T", "T", between(...LIMITS.T), common);
  read("link", "link", (text) => (LINK_NAMES.includes(text) ? text : null), common);
  read("alpha", "alpha", between(...LIMITS.alpha), common);
  if (!matrix) read("entry", "entry", place(own.off.length), own);
  if (!ours) return { state: null, wrong };
  const { scores, off, k, entry } = before;
  const other = matrix ? { scores, off, k, entry } : { matrix: before.matrix };
  return { state: changed(START, { ...other, ...own, ...common }), wrong };
}
