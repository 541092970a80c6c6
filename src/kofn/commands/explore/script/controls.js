// Sliders, fields and buttons: what they say of the state, and what they do to it.

import { add, find, fixed, rounded3, set, short } from "./dom.js";
import { LINK_NAMES, cdfOf, linkOf } from "./links.js";
import { setUpMatrix } from "./matrix/matrix_controls.js";
import { clamp, numberOf } from "./numbers.js";
import { MOST_ENTRIES, parseScores, writeScores } from "./state.js";

/** A field shows the state, except while someone writes into it. */
function show(field, text) {
  if (document.activeElement !== field && field.value !== text) field.value = text;
}

/** A slider and the field beside it, for one number of the state; `most` says what its limit is. */
function pair(store, name, toSlider, fromSlider, most = "") {
  const slider = find(`#${name}-slider`);
  const field = find(`#${name}-field`);
  const limits = find("#limits");
  const range = () => `${name === "alpha" ? "α" : name} goes from ${field.min} to ${field.max}${most}`;
  const say = () => {
    const value = store.state[name];
    slider.value = toSlider(value);
    set(slider, { "aria-valuetext": short(value) });
    slider.style.setProperty("--part", `${((slider.value - slider.min) / (slider.max - slider.min || 1)) * 100}%`);
    show(field, String(value));
    field.removeAttribute("aria-invalid");
  };
  slider.oninput = () => {
    store.stop();
    set(limits, { text: "" });
    store.change({ [name]: fromSlider(Number(slider.value)) });
  };
  const nearest = (value) => clamp(value, Number(field.min), Number(field.max));
  field.oninput = () => {
    const value = numberOf(field.value);
    const good = value === nearest(value);
    set(field, { "aria-invalid": good ? null : "true" });
    set(limits, { text: good ? "" : `${range()}.` });
    if (!good) return;
    store.stop();
    store.change({ [name]: value });
  };
  // What is out of the limits becomes the nearest of them, and the page says why.
  field.onblur = () => {
    const value = numberOf(field.value);
    if (Number.isNaN(value)) set(limits, { text: "" });
    else if (value !== nearest(value)) {
      set(limits, { text: `${range()}: ${field.value} became ${nearest(value)}.` });
      store.change({ [name]: nearest(value) });
    }
    say();
  };
  return say;
}

/** A small picture of F for the choice of a link. */
function glyph(name) {
  const link = linkOf(name, 1.5);
  const points = Array.from({ length: 61 }, (_, i) => {
    const z = -3 + i / 10;
    return `${(i * 0.8).toFixed(1)} ${(20 - 18 * cdfOf(link, z)).toFixed(1)}`;
  });
  return `M${points.join("L")}`;
}

export function setUpLinks(store) {
  const box = find("#links");
  for (const name of LINK_NAMES) {
    const label = add(box, "label", { class: "link", "data-link": name });
    const radio = add(label, "input", { type: "radio", name: "link", value: name });
    const picture = add(label, "svg", { viewBox: "-1 0 50 22", width: 50, height: 22, "aria-hidden": true });
    add(picture, "path", { d: glyph(name) });
    add(label, "span", { text: name });
    radio.onchange = () => store.change({ link: name });
  }
}

export function setUpControls(store) {
  setUpLinks(store);
  const k = pair(store, "k", (x) => x, (x) => x, ", the number of scores");
  const T = pair(store, "T", Math.log10, (x) => rounded3(10 ** x));
  const alpha = pair(store, "alpha", (x) => x, (x) => x);
  const count = find("#count");
  const text = find("#scores-text");
  const paste = setUpMatrix(store, normal);
  setUpText(store, text, paste);
  for (const radio of document.querySelectorAll("#views input")) {
    radio.onchange = () => {
      store.stop();
      store.change({ view: radio.value });
    };
  }
  find("#random").onclick = () => store.glide({ scores: store.state.scores.map(normal) });
  find("#fewer").onclick = () => resize(store, store.state.scores.length - 1);
  find("#more").onclick = () => resize(store, store.state.scores.length + 1);
  find("#reset").onclick = () => store.reset();

  return function draw() {
    const { state } = store;
    const n = state.scores.length;
    set(find("#k-slider"), { max: n });
    set(find("#k-field"), { max: n });
    set(find("#k-most"), { text: `of ${n}` });
    [k, T, alpha].forEach((say) => say());
    const radio = find(`#links [value=${state.link}]`);
    radio.checked = true;
    set(find("#alpha-control"), { hidden: state.link === "entmax" ? null : "" });
    document.documentElement.dataset.link = state.link;
    set(count, { text: String(n) });
    document.documentElement.dataset.view = state.view;
    find(`#views [value=${state.view}]`).checked = true;
    find("#fewer").disabled = n <= 1;
    find("#more").disabled = n >= MOST_ENTRIES;
    show(text, writeScores(state.scores));
  };
}

function setUpText(store, text, pasteMatrix) {
  const complaint = find("#scores-error");
  const take = (value) => {
    const { scores, error } = parseScores(value);
    set(complaint, { text: error ?? "" });
    set(text, { "aria-invalid": error ? "true" : null });
    if (scores) store.change({ scores, off: sameLength(store.state, scores) });
  };
  text.oninput = () => take(text.value);
  text.onblur = () => {
    take(writeScores(store.state.scores));
    text.value = writeScores(store.state.scores);
  };
  // Numbers that are pasted anywhere on the page become the scores.
  document.addEventListener("paste", (event) => {
    if (event.target.closest?.("input, textarea")) return;
    const pasted = event.clipboardData.getData("text");
    if (pasted.trim()) (store.state.view === "matrix" ? pasteMatrix : take)(pasted);
  });
}

/** Masks are kept while the number of scores stays. */
const sameLength = (state, scores) => (scores.length === state.scores.length ? state.off : []);

/** A random score, from a normal distribution of standard deviation 1.5. */
function normal() {
  const radius = Math.sqrt(-2 * Math.log(1 - Math.random()));
  return Math.round(150 * radius * Math.cos(2 * Math.PI * Math.random())) / 100 + 0;
}

function resize(store, n) {
  const kept = store.state.scores.slice(0, n);
  while (kept.length < n) kept.push(normal());
  store.change({ scores: kept });
}

/** The two numbers of the row, and what the page says aloud when they have settled. */
export function drawReadouts(store, found) {
  const { state } = store;
  const hard = found.hard.reduce((sum, p, i) => sum + (p ? p * state.scores[i] : 0), 0);
  set(find("#theta"), { text: fixed(found.theta) });
  set(find("#smoothed-sum"), { text: fixed(found.sum) });
  set(find("#hard-sum"), { text: fixed(hard) });
  const ends = found.interval?.map((x) => fixed(x, 2));
  set(find("#theta-note"), { text: ends ? `any from ${ends.join(" to ")}` : "" });
  set(find("#subset-note"), { hidden: found.marginals ? "" : null });
}
