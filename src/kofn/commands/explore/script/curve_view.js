// F((x − θ)/T) over the scores, with the entries on it.

import { each, linearScale, one, set, short, ticks } from "./dom.js";
import { LEFT, RIGHT, canvas, layer, levels, range, upright } from "./frame.js";
import { cdfOf } from "./links.js";

const HEIGHT = 236;
const [TOP, BOTTOM] = [26, HEIGHT - 26];
const POINTS = 240;

export function drawCurve(store, found, place = "#curve") {
  const { state } = store;
  const { svg, width } = canvas(place, HEIGHT);
  const domain = range(state.scores);
  const across = linearScale(domain, [LEFT, width - RIGHT]);
  const up = upright([0, 1], TOP, BOTTOM);
  levels(layer(svg, "levels"), up, [0, 0.5, 1], width, (x) => ({ 0.5: "½" })[x] ?? String(x));
  each(layer(svg, "scale"), "text", "tick", ticks(domain, 6).map((x) => ({
    x: across(x), y: HEIGHT - 8, text: short(x),
  })));
  drawInterval(svg, found, across);
  one(layer(svg, "path"), "path", "cdf", { d: curve(found, state.T, across, up) });
  drawTheta(svg, found.theta, across, width);
  drawDots(store, svg, found, across, up);
}

function curve({ theta, link }, T, across, up) {
  if (!Number.isFinite(theta)) return "";
  const [low, high] = across.domain;
  const at = Array.from({ length: POINTS + 1 }, (_, i) => low + ((high - low) * i) / POINTS);
  // A curve much steeper than the grid needs points of its own.
  for (let i = -40; i <= 40; i++) at.push(theta + T * link.edge + (T * i) / 5);
  const inside = at.filter((x) => x >= low && x <= high).sort((a, b) => a - b);
  const points = inside.map((x) => `${across(x).toFixed(2)} ${up(cdfOf(link, (x - theta) / T)).toFixed(2)}`);
  return `M${points.join("L")}`;
}

/** Where no weight is between 0 and 1, θ may be anything in an interval. */
function drawInterval(svg, found, across) {
  const ends = found.interval?.map((x) => Math.min(Math.max(across(x), LEFT), across(across.domain[1])));
  const group = set(layer(svg, "interval"), { visibility: ends ? null : "hidden" });
  if (!ends) return;
  one(group, "rect", "any", { x: ends[0], width: ends[1] - ends[0], y: TOP, height: BOTTOM - TOP });
}

function drawTheta(svg, theta, across, width) {
  const [low, high] = across.domain;
  const inside = theta >= low && theta <= high;
  const x = inside ? across(theta) : theta > high ? width - RIGHT : LEFT;
  const group = set(layer(svg, "threshold"), { visibility: Number.isNaN(theta) ? "hidden" : null });
  one(group, "line", "theta", {
    x1: x, x2: x, y1: TOP - 6, y2: BOTTOM, visibility: inside ? null : "hidden",
  });
  const arrows = inside ? ["", ""] : theta > high ? ["", " →"] : ["← ", ""];
  const place = Math.min(Math.max(x, LEFT + 14), width - RIGHT - 14);
  one(group, "text", "theta-name", { x: place, y: TOP - 11, text: `${arrows[0]}θ${arrows[1]}` });
}

function drawDots(store, svg, found, across, up) {
  const { scores, off, entry } = store.state;
  const [low, high] = across.domain;
  const x = scores.map((score) => across(Math.min(Math.max(score, low), high)));
  const guide = `M${x[entry]} ${BOTTOM}V${up(found.p[entry])}H${LEFT}`;
  one(layer(svg, "guides"), "path", "guide", { d: guide });
  const group = layer(svg, "dots");
  const order = scores.map((_, i) => i);
  const size = scores.length > 24 ? 3.5 : 5;
  const dots = each(group, "circle", "entry", order.map((i) => ({
    cx: x[i], cy: up(found.p[i]), r: i === entry ? size + 1.5 : size,
    "data-chosen": i === entry || null, "data-off": off[i] || null,
  })));
  dots.forEach((dot, i) => (dot.onclick = () => store.change({ entry: i })));
}
