// The weights against the temperature. The line at the present one is dragged like a slider.

import { path } from "./answer.js";
import { each, linearScale, one, rounded3 } from "./dom.js";
import { LEFT, RIGHT, canvas, layer, levels, upright } from "./frame.js";
import { LIMITS } from "./state.js";

const HEIGHT = 220;
const [TOP, BOTTOM] = [12, HEIGHT - 26];
const LOGS = LIMITS.T.map(Math.log10);
const cache = { key: "", rows: [], logs: [] };

/** Weights at temperatures from the warmest to the coldest; they outlast a change of T alone. */
function rowsOf(state) {
  const { scores, off, k, link, alpha } = state;
  const key = JSON.stringify([scores.map(String), off, k, link, alpha]);
  if (cache.key !== key) {
    const count = scores.length > 24 ? 49 : 97;
    cache.logs = Array.from({ length: count }, (_, i) => LOGS[1] + ((LOGS[0] - LOGS[1]) * i) / (count - 1));
    cache.rows = path(state, cache.logs.map((log) => 10 ** log));
    cache.key = key;
  }
  return cache;
}

export function drawCooling(store, found) {
  const { state } = store;
  const { svg, width } = canvas("#cooling", HEIGHT);
  const across = linearScale([LOGS[1], LOGS[0]], [LEFT, width - RIGHT]);
  const up = upright([0, 1], TOP, BOTTOM);
  levels(layer(svg, "levels"), up, [0, 0.5, 1], width, (x) => ({ 0.5: "½" })[x] ?? String(x));
  each(layer(svg, "scale"), "text", "tick", [2, 1, 0, -1, -2].map((log) => ({
    x: across(log), y: HEIGHT - 8, text: (log === 2 ? "T = " : "") + Number((10 ** log).toFixed(2)),
  })));
  const { logs, rows } = rowsOf(state);
  const line = (i) => `M${logs.map((log, j) => `${across(log).toFixed(1)} ${up(rows[j][i]).toFixed(1)}`).join("L")}`;
  const lines = state.scores.map((_, i) => ({
    d: line(i), "data-chosen": i === state.entry || null, "data-off": state.off[i] || null,
  }));
  each(layer(svg, "lines"), "path", "fate", lines);
  one(layer(svg, "top"), "path", "fate-chosen", { d: line(state.entry) });
  drawNow(store, found, svg, across, up);
}

function drawNow(store, found, svg, across, up) {
  const { T, scores, entry } = store.state;
  const x = across(Math.log10(T));
  const group = layer(svg, "now");
  one(group, "line", "present", { x1: x, x2: x, y1: TOP - 6, y2: BOTTOM });
  each(group, "circle", "point", scores.map((_, i) => ({
    cx: x, cy: up(found.p[i]), r: i === entry ? 5 : 3, "data-chosen": i === entry || null,
  })));
  const follow = (event) => {
    const log = across.back(event.clientX - svg.getBoundingClientRect().left);
    store.change({ T: rounded3(10 ** Math.min(Math.max(log, LOGS[0]), LOGS[1])) });
  };
  svg.onpointerdown = (event) => {
    if (event.button) return;
    svg.setPointerCapture(event.pointerId);
    store.stop();
    follow(event);
  };
  svg.onpointermove = (event) => svg.hasPointerCapture(event.pointerId) && follow(event);
}
