// The scores: knobs that are dragged, or moved with the arrow keys, before the fog of F.

import { each, fixed, one, set, short, ticks } from "./dom.js";
import { LEFT, RIGHT, canvas, choosers, columns, held, layer, levels, range, upright } from "./frame.js";
import { cdfOf } from "./links.js";

const HEIGHT = 210;
const [TOP, BOTTOM] = [14, HEIGHT - 14];

/** Where a score is drawn: infinite ones at the edge. */
const within = (x, [low, high]) => Math.min(Math.max(x, low), high);

export function drawScores(store, found) {
  const { state } = store;
  const { svg, width } = canvas("#scores", HEIGHT);
  const domain = range(state.scores);
  const scale = upright(domain, TOP, BOTTOM);
  const column = columns(width, state.scores.length);
  drawFog(svg, found, state, scale, width);
  choosers(layer(svg, "areas"), column, HEIGHT, store);
  levels(layer(svg, "levels"), scale, ticks(domain, 5), width, short);
  drawThreshold(svg, found.theta, scale, width);
  drawKnobs(store, found, svg, scale, column);
}

/** F from below to above as a shade: where a score is in it is what it weighs. */
function drawFog(svg, found, state, scale, width) {
  const fog = layer(svg, "fog");
  const definitions = one(fog, "defs", "shades");
  const shade = one(definitions, "linearGradient", "shade", { id: "shade", x1: 0, x2: 0, y1: 1, y2: 0 });
  const { theta, link } = found;
  const stops = Array.from({ length: 33 }, (_, i) => {
    const x = scale.back(BOTTOM + (TOP - BOTTOM) * (i / 32));
    const F = Number.isFinite(theta) ? cdfOf(link, (x - theta) / state.T) : Number(theta === -Infinity);
    return { offset: i / 32, "stop-opacity": F.toFixed(3) };
  });
  each(shade, "stop", "shade-stop", stops);
  one(fog, "rect", "fog-area", {
    x: LEFT, width: width - LEFT - RIGHT, y: TOP, height: BOTTOM - TOP, fill: "url(#shade)",
  });
}

function drawThreshold(svg, theta, scale, width) {
  const [low, high] = scale.domain;
  const shown = theta >= low && theta <= high;
  const group = layer(svg, "threshold");
  set(group, { visibility: shown ? null : "hidden" });
  if (!shown) return;
  one(group, "line", "theta", { x1: LEFT, x2: width - RIGHT, y1: scale(theta), y2: scale(theta) });
  one(group, "text", "theta-name", { x: width - RIGHT - 4, y: scale(theta) - 5, text: "θ" });
}

function drawKnobs(store, found, svg, scale, column) {
  const { scores, off, entry } = store.state;
  const at = scores.map((x) => scale(within(x, scale.domain)));
  const zero = scale(0);
  const group = set(layer(svg, "knobs"), { role: "group", "aria-label": "Scores" });
  each(group, "line", "stem", scores.map((_, i) => ({
    x1: column.middle(i), x2: column.middle(i), y1: zero, y2: at[i], "data-off": off[i] || null,
  })));
  const radius = Math.min(Math.max(column.step * 0.28, 2.5), 8);
  const knobs = each(group, "g", "knob", scores.map((x, i) => ({
    transform: `translate(${column.middle(i)} ${at[i]})`,
    role: "slider",
    tabindex: i === entry ? 0 : -1,
    "aria-orientation": "vertical",
    "aria-label": `Score of entry ${i}${off[i] ? ", masked" : ""}`,
    "aria-valuemin": scale.domain[0],
    "aria-valuemax": scale.domain[1],
    "aria-valuenow": within(x, scale.domain),
    "aria-valuetext": `${fixed(x, 2)}, weight ${fixed(found.p[i])}`,
    "data-off": off[i] || null,
    "data-chosen": i === entry || null,
  })));
  knobs.forEach((knob, i) => {
    const reach = Math.min(Math.max(column.step / 2, radius + 2), 22);
    one(knob, "circle", "reach", { r: reach });
    one(knob, "circle", "ring", { r: radius + 4 });
    one(knob, "circle", "back", { r: radius });
    one(knob, "circle", "dot", { r: radius, "fill-opacity": found.p[i].toFixed(3) });
    one(knob, "text", "infinite", {
      x: radius + 6, y: 4, text: Number.isFinite(scores[i]) ? "" : fixed(scores[i]),
    });
    grip(store, knob, i, svg, scale);
  });
}

/** Let a knob be dragged. Pointers are mice, fingers and pens. */
function grip(store, knob, i, svg, scale) {
  const follow = (event) => {
    const [low, high] = scale.domain;
    const x = scale.back(event.clientY - svg.getBoundingClientRect().top);
    store.change({ scores: withScore(store.state.scores, i, within(x, [low, high])) });
  };
  knob.onpointerdown = (event) => {
    if (event.button) return;
    knob.setPointerCapture(event.pointerId);
    held.range = scale.domain;
    knob.focus({ preventScroll: true });
    store.change({ entry: i });
    event.preventDefault();
  };
  knob.onpointermove = (event) => knob.hasPointerCapture(event.pointerId) && follow(event);
  knob.onpointerup = knob.onpointercancel = () => {
    held.range = null;
    store.change({});
  };
  knob.ontouchstart = (event) => event.preventDefault(); // or the page would scroll instead
  knob.onfocus = () => store.state.entry !== i && store.change({ entry: i });
  knob.onkeydown = (event) => pressed(store, i, event);
}

const withScore = (scores, i, x) => scores.map((old, j) => (i === j ? Math.round(x * 100) / 100 + 0 : old));

const STEPS = { ArrowUp: 0.1, ArrowDown: -0.1, PageUp: 1, PageDown: -1 };

function pressed(store, i, event) {
  const { scores, off } = store.state;
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const n = scores.length;
  const to = { ArrowLeft: i - 1, ArrowRight: i + 1, Home: 0, End: n - 1 }[event.key];
  if (to !== undefined) focusEntry(store, Math.min(Math.max(to, 0), n - 1));
  else if (event.key in STEPS) {
    const from = Number.isFinite(scores[i]) ? scores[i] : 0;
    store.change({ scores: withScore(scores, i, from + STEPS[event.key] / (event.shiftKey ? 10 : 1)) });
  } else if (event.key === "m" || event.key === "M") {
    store.change({ off: off.map((each, j) => (i === j ? !each : each)) });
  } else return;
  event.preventDefault();
}

function focusEntry(store, i) {
  store.change({ entry: i });
  document.querySelectorAll("#scores .knob")[i].focus({ preventScroll: true });
}
