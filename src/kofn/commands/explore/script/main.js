// The page: one state, and everything drawn from it.

import { answer } from "./answer.js";
import { drawCooling } from "./cooling_view.js";
import { drawReadouts, setUpControls } from "./controls.js";
import { drawCurve } from "./curve_view.js";
import { each, find, fixed, onResize, rounded3, set } from "./dom.js";
import { forgetWidths, widthOf } from "./frame.js";
import { drawGradient } from "./gradient_view.js";
import { assignment } from "./matrix/assignment.js";
import { drawMatrix } from "./matrix/cells_view.js";
import { codeFor } from "./matrix/matrix_code.js";
import { drawMatrixCurve, drawMatrixReadouts } from "./matrix/matrix_controls.js";
import { drawMatrixTable } from "./matrix/matrix_table.js";
import { drawScores } from "./scores_view.js";
import { LIMITS, START, changed, fromHash, toHash } from "./state.js";
import { drawTable } from "./table_view.js";
import { drawWeights } from "./weights_view.js";

const still = window.matchMedia("(prefers-reduced-motion: reduce)");
const store = { state: START, change, glide, mask, stop, reset };
let frame = 0;
let motion = 0;
let drawControls = () => {};
let found = null;

/** Take over a change and draw it, once per frame however many changes come. */
function change(part) {
  if (part.view && part.view !== store.state.view) forgetWidths(); // what was out of sight had none
  store.state = changed(store.state, part);
  if (!frame) frame = requestAnimationFrame(draw);
}

function mask(i, off) {
  change({ off: store.state.off.map((old, j) => (i === j ? off : old)) });
}

function reset() {
  stop();
  store.state = { ...START, view: store.state.view };
  set(find("#notice"), { text: "" });
  change({});
}

const VIEWS = {
  row: [drawScores, drawWeights, drawGradient, drawCurve, drawCooling, drawTable, drawReadouts, drawMasks],
  matrix: [drawMatrix, drawMatrixCurve, drawMatrixTable, drawMatrixReadouts],
};

function draw() {
  frame = 0;
  const { state } = store;
  found = state.view === "matrix" ? assignment(state) : answer(state);
  drawControls();
  for (const view of VIEWS[state.view]) view(store, found);
  drawCode();
  later(remember, 250);
  later(say, 900);
}

const timers = new Map();

function later(call, wait) {
  clearTimeout(timers.get(call));
  timers.set(call, setTimeout(call, wait));
}

/** Keep the state in the address; a page that may not, as in some frames, does without. */
function remember() {
  try {
    if (location.hash !== toHash(store.state)) history.replaceState(null, "", toHash(store.state));
  } catch {}
}

/** Tell screen readers what came out, when it has come to rest. */
function say() {
  const { view, k, T, link, entry } = store.state;
  if (view === "matrix") return sayMatrix(store.state);
  const words = `${link}, k ${k}, temperature ${T}: threshold ${fixed(found.theta)}, `;
  set(find("#status"), { text: `${words}weight of entry ${entry} ${fixed(found.p[entry])}` });
}

function sayMatrix({ T, link, matrix }) {
  const n = matrix.columns.length;
  const [i, j] = [Math.floor(matrix.cell / n), matrix.cell % n];
  const words = `weight of row ${i}, column ${j} ${fixed(found.p?.[i][j] ?? NaN)}, `
    + `prices ${fixed(found.alpha[i])} and ${fixed(found.beta[j])}`;
  set(find("#status"), {
    text: found.p ? `${link}, temperature ${T}: ${words}` : "No weights from 0 to 1 have these sums.",
  });
}

/** Buttons under the scores that take an entry out of the choice, where there is room. */
function drawMasks() {
  const { off } = store.state;
  const box = find("#masks");
  const roomy = widthOf(find("#scores").parentElement) / off.length >= 32;
  set(box, { hidden: roomy ? null : "" });
  const buttons = each(box, "button", "mask", roomy ? off.map((masked, i) => ({
    type: "button",
    text: String(i),
    "aria-pressed": !masked,
    "aria-label": `Entry ${i} takes part`,
    title: masked ? "Let it take part" : "Mask this entry",
  })) : []);
  buttons.forEach((button, i) => (button.onclick = () => mask(i, !store.state.off[i])));
}

/** Go to other scores in a quarter of a second; every step on the way is a true answer. */
function glide(part) {
  stop();
  const from = store.state.scores;
  if (still.matches || !from.every(Number.isFinite)) return change(part);
  const began = performance.now();
  const step = (time) => {
    const s = Math.min((time - began) / 350, 1);
    const eased = 1 - (1 - s) ** 3;
    const between = part.scores.map((x, i) => Math.round(100 * (from[i] + (x - from[i]) * eased)) / 100 + 0);
    change({ ...part, scores: s < 1 ? between : part.scores });
    motion = s < 1 ? requestAnimationFrame(step) : 0;
  };
  motion = requestAnimationFrame(step);
}

/** Cool from warm to cold in eight seconds; in a few steps if motion is to be reduced. */
function play() {
  if (motion) return stop();
  const [cold, warm] = LIMITS.T.map(Math.log10);
  const end = -2;
  const begin = Math.log10(store.state.T) < cold + 0.1 ? Math.min(warm, 1) : Math.log10(store.state.T);
  const began = performance.now();
  const seconds = 8 * ((begin - end) / 3);
  const step = (time) => {
    const part = Math.max((time - began) / (1000 * seconds), 0);
    const shown = still.matches ? Math.floor(part * 12) / 12 : part;
    const T = rounded3(10 ** (begin + (end - begin) * Math.min(shown, 1)));
    if (T !== store.state.T) change({ T });
    if (part >= 1) return stop();
    motion = requestAnimationFrame(step);
  };
  motion = requestAnimationFrame(step);
  set(find("#play"), { "aria-pressed": true });
  set(find("#play-text"), { text: "Stop" });
}

function stop() {
  cancelAnimationFrame(motion);
  motion = 0;
  set(find("#play"), { "aria-pressed": false });
  set(find("#play-text"), { text: "Cool it down" });
}

const framework = () => find("#frameworks input:checked").value;

function drawCode() {
  set(find("#code code"), { text: codeFor(framework(), store.state) });
}

/** Copy a text; where the browser does not allow that, select it for the user to copy. */
async function copy(text, button, element) {
  try {
    await navigator.clipboard.writeText(text);
    tell(button, "Copied");
  } catch {
    if (element) getSelection().selectAllChildren(element);
    tell(button, element ? "Selected: copy it with Ctrl+C" : "Copy it from the address");
  }
}

function tell(button, text) {
  const usual = (button.dataset.usual ??= button.textContent);
  button.textContent = text;
  setTimeout(() => (button.textContent = usual), 1600);
}

/** Light, dark, or as the system has it; the choice is kept where the browser allows it. */
function setUpTheme() {
  const button = find("#theme");
  const names = ["system", "light", "dark"];
  let kept = null;
  try {
    kept = localStorage.getItem("kofn-theme");
  } catch {}
  const apply = (name) => {
    document.documentElement.dataset.theme = name;
    set(button, { "aria-label": `Colours: ${name}`, title: `Colours: ${name}` });
    set(find("#theme-text"), { text: name });
  };
  apply(names.includes(kept) ? kept : "system");
  button.onclick = () => {
    const next = names[(names.indexOf(document.documentElement.dataset.theme) + 1) % 3];
    apply(next);
    try {
      localStorage.setItem("kofn-theme", next);
    } catch {}
  };
}

/** Take over the state of the address, and say what in it cannot be used. */
function readAddress() {
  const { state, wrong } = fromHash(location.hash, store.state);
  if (state) store.state = state;
  forgetWidths();
  set(find("#notice"), {
    text: wrong.length ? `This link has parts that cannot be used: ${wrong.join(", ")}.` : "",
  });
  change({});
}

function begin() {
  drawControls = setUpControls(store);
  setUpTheme();
  find("#play").onclick = play;
  find("#frameworks").onchange = drawCode;
  find("#copy").onclick = (event) => copy(find("#code code").textContent, event.currentTarget, find("#code"));
  find("#share").onclick = (event) => {
    remember();
    copy(location.href, event.currentTarget, null);
  };
  window.addEventListener("hashchange", readAddress);
  readAddress();
  draw(); // at once: a frame that is out of sight would wait
  onResize(find("main"), () => {
    forgetWidths();
    change({});
  });
}

begin();
