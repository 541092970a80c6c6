// What the page shows, and how it is written: in the address of the page and in text fields.

import { LINK_NAMES } from "./links.js";

export const MOST_ENTRIES = 64;
const LARGEST_SCORE = 1e6;
export const LIMITS = { T: [0.01, 100], alpha: [1, 4] };

export const START = {
  scores: [3.1, 2.5, 1.7, 1.5, 1, 0.3, -0.5, -1.8],
  off: Array(8).fill(false),
  k: 3,
  T: 0.5,
  link: "logistic",
  alpha: 1.5,
  entry: 2,
};

const clamp = (x, low, high) => Math.min(Math.max(x, low), high);

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
  };
}

const INFINITE = ["inf", "infinity", "∞"];

/** The number that a word stands for, or NaN. */
export function numberOf(word) {
  const text = word.trim().replace(/^\u2212/, "-");
  const [, sign, name] = /^([+-]?)(.*)$/.exec(text);
  const finite = /^[\d.]/.test(name) ? Number(name) : NaN;
  const size = INFINITE.includes(name.toLowerCase()) ? Infinity : finite;
  return sign === "-" ? -size : size;
}

/** The scores in a text: numbers between commas, white space, brackets or semicolons. */
export function parseScores(text) {
  const words = text.split(/[\s,;[\](){}|]+/).filter(Boolean);
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

/** The state as the part of an address after #. */
export function toHash(state) {
  const off = state.off.flatMap((each, i) => (each ? [i] : []));
  const parts = [`x=${state.scores.map(spelled).join(",")}`];
  if (off.length) parts.push(`off=${off.join(",")}`);
  parts.push(`k=${state.k}`, `T=${state.T}`, `link=${state.link}`);
  if (state.link === "entmax") parts.push(`alpha=${state.alpha}`);
  parts.push(`entry=${state.entry}`);
  return `#${parts.join("&")}`;
}

const between = (low, high) => (text) => {
  const x = numberOf(text);
  return x >= low && x <= high ? x : null;
};

const place = (n) => (text) => (/^\d+$/.test(text) && Number(text) < n ? Number(text) : null);

function places(text, n) {
  const found = text.split(",").map(place(n));
  return found.includes(null) ? null : found;
}

/**
 * The state in an address, and the parts of it that cannot be used; these keep their usual values.
 * An address without a part of ours gives no state.
 */
export function fromHash(hash) {
  const given = new URLSearchParams(hash.replace(/^#/, "").replace(/\+/g, "%2B"));
  const change = {};
  const wrong = [];
  const read = (name, key, parse) => {
    if (!given.has(name)) return;
    const value = parse(given.get(name));
    if (value === null || value === undefined) wrong.push(`${name}=${given.get(name).slice(0, 30)}`);
    else change[key] = value;
  };
  read("x", "scores", (text) => parseScores(text).scores);
  const n = (change.scores ?? START.scores).length;
  read("off", "masked", (text) => places(text, n));
  read("k", "k", between(0, n));
  read("T", "T", between(...LIMITS.T));
  read("link", "link", (text) => (LINK_NAMES.includes(text) ? text : null));
  read("alpha", "alpha", between(...LIMITS.alpha));
  read("entry", "entry", place(n));
  if (!Object.keys(change).length) return { state: null, wrong };
  const { masked = [], ...rest } = change;
  const off = Array.from({ length: n }, (_, i) => masked.includes(i));
  return { state: changed(START, { ...rest, off }), wrong };
}
