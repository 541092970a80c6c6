// Numbers as they are read from fields and addresses, and written there.

export const clamp = (x, low, high) => Math.min(Math.max(x, low), high);

const INFINITE = ["inf", "infinity", "∞"];

/** The number that a word stands for, or NaN. */
export function numberOf(word) {
  const text = word.trim().replace(/^\u2212/, "-");
  const [, sign, name] = /^([+-]?)(.*)$/.exec(text);
  const finite = /^[\d.]/.test(name) ? Number(name) : NaN;
  const size = INFINITE.includes(name.toLowerCase()) ? Infinity : finite;
  return sign === "-" ? -size : size;
}

/** A reader of numbers in an interval; null for what is not one. */
export const between = (low, high) => (text) => {
  const x = numberOf(text);
  return x >= low && x <= high ? x : null;
};

/** A reader of indices below n; null for what is not one. */
export const place = (n) => (text) => (/^\d+$/.test(text) && Number(text) < n ? Number(text) : null);

/** The indices below n in a text, between commas; null if one is not. */
export function places(text, n) {
  const found = text.split(",").map(place(n));
  return found.includes(null) ? null : found;
}
