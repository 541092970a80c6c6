// Small helpers for the page: elements, numbers as text, scales.

export const find = (selector) => document.querySelector(selector);

const SVG = "http://www.w3.org/2000/svg";
const IN_HTML = new Set(["BUTTON", "THEAD", "TBODY", "TFOOT", "TD", "TH", "TR", "INPUT", "LABEL", "SPAN"]);

/** Set attributes; a null removes one. */
export function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") {
      if (element.textContent !== value) element.textContent = value;
    } else if (value === null || value === undefined) element.removeAttribute(name);
    else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
  }
  return element;
}

/** A new element inside of another. */
export function add(parent, tag, attributes = {}) {
  const html = IN_HTML.has(tag.toUpperCase());
  const element = html ? document.createElement(tag) : document.createElementNS(SVG, tag);
  parent.append(element);
  return set(element, attributes);
}

/**
 * The children of a class, as many as there are attributes in the list: kept where they are, so
 * that focus and a drag outlive a redraw.
 */
export function each(parent, tag, name, list) {
  const children = [...parent.querySelectorAll(`:scope > .${name}`)];
  children.splice(list.length).forEach((child) => child.remove());
  return list.map((attributes, i) => {
    const child = children[i] ?? add(parent, tag);
    return set(child, { class: name, ...attributes });
  });
}

/** The one child of a class, made when it is first asked for. */
export const one = (parent, tag, name, attributes = {}) => each(parent, tag, name, [attributes])[0];

const MINUS = "\u2212";

/** A number with a fixed number of decimals, a true minus and ∞. */
export function fixed(x, decimals = 3) {
  if (x === null || Number.isNaN(x)) return "–";
  if (!Number.isFinite(x)) return x > 0 ? "∞" : `${MINUS}∞`;
  const text = Math.abs(x).toFixed(decimals);
  return x < 0 && Number(text) !== 0 ? MINUS + text : text;
}

/** A weight: 0 and 1 in full where it is exactly that. */
export const weightText = (p, decimals) => (p === 0 || p === 1 ? String(p) : fixed(p, decimals));

/** A number as short as it can be. */
export const short = (x) => (Number.isFinite(x) ? String(x).replace("-", MINUS) : fixed(x));

/** A number to three digits, as sliders give it and as code writes it. */
export const rounded3 = (x) => Number(x.toPrecision(3));

/** A linear scale from values to pixels, and back. */
export function linearScale([from, to], [start, end]) {
  const scale = (x) => start + ((x - from) / (to - from)) * (end - start);
  scale.back = (pixel) => from + ((pixel - start) / (end - start)) * (to - from);
  scale.domain = [from, to];
  return scale;
}

/** A number of the form 1, 2 or 5 times a power of ten, at least x. */
export function roundUp(x) {
  const power = 10 ** Math.floor(Math.log10(x));
  return [1, 2, 5, 10].map((each) => each * power).find((each) => each >= x * (1 - 1e-9));
}

/** Round numbers between two ends, about so many. */
export function ticks([from, to], about) {
  const step = roundUp((to - from) / about);
  const first = Math.ceil(from / step - 1e-9);
  const count = Math.floor(to / step + 1e-9) - first + 1;
  return Array.from({ length: count }, (_, i) => (first + i) * step).map((x) => Number(x.toFixed(10)));
}

/** The width of an element in pixels, and a call whenever it changes. */
export function onResize(element, call) {
  new ResizeObserver(() => call()).observe(element);
}
