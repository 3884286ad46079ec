"use strict";
// Plots as SVG: lines, bars and points on linear or logarithmic axes, with a cursor for pointer and keyboard,
// a legend that hides series, and a table of the same values. All texts are set as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";
const MARGIN = { top: 14, right: 18, bottom: 44, left: 66 };
const HEIGHT = 300;
const TIME_UNITS = [["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]];

function element(parent, name, attributes = {}, text = null) {
  const namespace = parent instanceof SVGElement || name === "svg" ? SVG : "http://www.w3.org/1999/xhtml";
  const node = document.createElementNS(namespace, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  parent.append(node);
  return node;
}

function digits(value, count = 3) {
  if (!value) return "0";
  if (Math.abs(value) >= 10 ** count) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(count)));
}

const FORMATS = {
  time(value) {
    if (!value) return "0 s";
    const [symbol, size] = TIME_UNITS.find(([, size]) => Math.abs(value) >= size * 0.9995) ?? TIME_UNITS.at(-1);
    return `${digits(value / size)} ${symbol}`;
  },
  number: (value) => digits(value),
  percent: (value) => `${digits(value * 100)} %`,
  change: (value) => `${value > 0 ? "+" : value < 0 ? "−" : ""}${digits(Math.abs(value) * 100, 2)} %`,
  percentile: (value) => `P${Number((100 - 100 / value).toPrecision(6))}`,
};

const tickText = (axis, value) => axis.names?.[Math.floor(value)] ?? FORMATS[axis.format](value);

function linearTicks(low, high, wanted) {
  const raw = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((each) => each * power >= raw * 0.999) * power;
  const ticks = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n++) ticks.push(n * step);
  return ticks;
}

function logTicks(low, high, wanted) {
  const decades = Math.log10(high / low);
  const factors = decades <= wanted / 3 ? [1, 2, 5] : [1];
  const stride = Math.max(1, Math.ceil(decades / wanted));
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    if (factors.length === 1 && power % stride) continue;
    for (const factor of factors) ticks.push(factor * 10 ** power);
  }
  const inside = ticks.filter((each) => each >= low * 0.9999 && each <= high * 1.0001);
  return inside.length >= 2 ? inside : linearTicks(low, high, wanted);
}

// An axis from values to pixels. `domain` is [low, high].
function scale(axis, domain, from, to, wanted) {
  const [low, high] = domain;
  const map = axis.log ? Math.log : (value) => value;
  const span = map(high) - map(low) || 1;
  const at = (value) => from + ((map(value) - map(low)) / span) * (to - from);
  const ticks = (axis.ticks ?? (axis.log ? logTicks : linearTicks)(low, high, wanted)).filter(
    (each) => each >= low - 1e-12 && each <= high * (1 + 1e-9));
  return { at, ticks, low, high };
}

function domainOf(axis, values) {
  let usable = values.filter((each) => Number.isFinite(each) && (!axis.log || each > 0));
  if (!usable.length) usable = [axis.log ? 1 : 0, 10];
  let low = Math.min(...usable), high = Math.max(...usable);
  if (axis.log) {
    if (high / low < 1.5) { low /= 1.3; high *= 1.3; }
    return axis.tight ? [low, high] : [low / 1.08, high * 1.08];
  }
  if (axis.zero !== false && low > 0) low = 0;
  if (low === high) { high = low + 1; }
  const room = axis.tight ? 0 : (high - low) * 0.06;
  return [low < 0 ? low - room : low, high + room];
}

let plotCount = 0;

// spec: {title, summary, x, y, series: [{name, kind: line|bars|points|steps, values: [{x, y, low, high, x0, label}], dashed}],
//        marks: [{x, text}], bands: [{from, to, text}], rules: [{y, text}]}; an axis: {label, format, log, ticks, zero, tight}
function plot(parent, spec) {
  const figure = element(parent, "figure", { class: "plot" });
  const id = `plot-${++plotCount}`;
  element(figure, "figcaption", { id }, spec.title);
  if (spec.summary) element(figure, "p", { class: "summary", id: `${id}-summary` }, spec.summary);
  const hidden = new Set();
  const legend = element(figure, "div", { class: "legend" });
  const stage = element(figure, "div", { class: "stage" });
  const tip = element(stage, "div", { class: "tip", role: "status", hidden: "" });
  const draw = () => drawPlot(stage, tip, spec, hidden, id);
  if (spec.series.length > 1) {
    spec.series.forEach((series, index) => {
      const button = element(legend, "button", { type: "button", "aria-pressed": "true" });
      element(button, "span", { class: `swatch c${series.color ?? index}${series.dashed ? " dashed" : ""}` });
      button.append(series.name);
      button.addEventListener("click", () => {
        if (hidden.delete(index)) button.setAttribute("aria-pressed", "true");
        else { hidden.add(index); button.setAttribute("aria-pressed", "false"); }
        draw();
      });
    });
  }
  draw();
  let width = stage.clientWidth;
  new ResizeObserver(() => requestAnimationFrame(() => {
    if (stage.clientWidth !== width) { width = stage.clientWidth; draw(); }
  })).observe(stage);
  valueTable(figure, spec);
  return figure;
}

function drawPlot(stage, tip, spec, hidden, id) {
  stage.querySelector("svg")?.remove();
  const width = Math.max(stage.clientWidth || 640, 280);
  const shown = spec.series.map((series, index) => ({ color: index, ...series })).filter((_, index) => !hidden.has(index));
  const values = shown.flatMap((series) => series.values);
  const bars = shown.some((series) => series.kind === "bars");
  const left = spec.rows ? Math.min(220, width * 0.4) : MARGIN.left;
  const height = spec.rows ? spec.rows.length * 26 + MARGIN.top + MARGIN.bottom : HEIGHT;
  const xs = values.flatMap((each) => [each.x, each.x0 ?? each.x, ...(spec.rows ? [each.low ?? each.x, each.high ?? each.x] : [])]);
  const ys = values.flatMap((each) => [each.y, each.low ?? each.y, each.high ?? each.y]);
  const x = scale(spec.x, domainOf(spec.x, [...xs, ...(spec.x.include ?? [])]), left, width - MARGIN.right, width / 90);
  const yDomain = spec.rows ? [-0.5, spec.rows.length - 0.5] : domainOf(spec.y, [...ys, ...(bars ? [0] : []), ...(spec.y.include ?? [])]);
  const y = scale(spec.y, yDomain, height - MARGIN.bottom, MARGIN.top, 6);
  const svg = element(stage, "svg", {
    viewBox: `0 0 ${width} ${height}`, width, height, role: "img", tabindex: "0",
    "aria-labelledby": id, ...(spec.summary ? { "aria-describedby": `${id}-summary` } : {}),
  });
  drawBackground(svg, spec, x, y, { left, right: width - MARGIN.right, top: MARGIN.top, bottom: height - MARGIN.bottom });
  for (const series of shown) drawSeries(svg, series, x, y, spec);
  drawMarks(svg, spec, x, y, { left, right: width - MARGIN.right, top: MARGIN.top, bottom: height - MARGIN.bottom });
  cursor(svg, tip, shown, x, y, spec, height);
}

function drawBackground(svg, spec, x, y, box) {
  for (const band of spec.bands ?? []) {
    const from = Math.max(x.at(Math.max(band.from, x.low)), box.left), to = Math.min(x.at(Math.min(band.to, x.high)), box.right);
    if (to <= from) continue;
    element(svg, "rect", { class: "band", x: from, y: box.top, width: to - from, height: box.bottom - box.top });
    element(svg, "text", { class: "mark", x: from + 4, y: box.top + 12 }, band.text);
  }
  let written = -Infinity;
  for (const tick of x.ticks) {
    element(svg, "line", { class: "grid", x1: x.at(tick), x2: x.at(tick), y1: box.top, y2: box.bottom });
    const text = tickText(spec.x, tick), room = text.length * 7;
    if (x.at(tick) - room / 2 < written) continue;
    element(svg, "text", { class: "tick", x: x.at(tick), y: box.bottom + 16, "text-anchor": "middle" }, text);
    written = x.at(tick) + room / 2 + 4;
  }
  element(svg, "text", { class: "axis", x: (box.left + box.right) / 2, y: box.bottom + 36, "text-anchor": "middle" }, spec.x.label);
  if (spec.rows) {
    spec.rows.forEach((text, index) =>
      element(svg, "text", { class: "tick", x: box.left - 8, y: y.at(spec.rows.length - 1 - index) + 4, "text-anchor": "end" }, text));
    return;
  }
  for (const tick of y.ticks) {
    element(svg, "line", { class: "grid", x1: box.left, x2: box.right, y1: y.at(tick), y2: y.at(tick) });
    element(svg, "text", { class: "tick", x: box.left - 8, y: y.at(tick) + 4, "text-anchor": "end" }, FORMATS[spec.y.format](tick));
  }
  const middle = (box.top + box.bottom) / 2;
  element(svg, "text", { class: "axis", x: 14, y: middle, transform: `rotate(-90 14 ${middle})`, "text-anchor": "middle" }, spec.y.label);
}

function drawSeries(svg, series, x, y, spec) {
  const group = element(svg, "g", { class: `series c${series.color}${series.dashed ? " dashed" : ""}` });
  const usable = series.values.filter((each) => Number.isFinite(each.x) && Number.isFinite(each.y)
    && (!spec.x.log || each.x > 0) && (!spec.y.log || each.y > 0));
  if (series.kind === "bars") {
    for (const each of usable) {
      const from = x.at(each.x0), to = x.at(each.x);
      const base = y.at(Math.max(each.low ?? 0, y.low));
      element(group, "rect", { class: "bar", x: from, width: Math.max(to - from - (series.gap ?? 0.6), 0.6), y: y.at(each.y), height: Math.max(base - y.at(each.y), 0) });
    }
    return;
  }
  for (const each of usable) {
    if (!Number.isFinite(each.low) || !Number.isFinite(each.high)) continue;
    const ends = spec.rows ? { x1: x.at(each.low), x2: x.at(each.high), y1: y.at(each.y), y2: y.at(each.y) }
      : { x1: x.at(each.x), x2: x.at(each.x), y1: y.at(Math.max(each.low, y.low)), y2: y.at(each.high) };
    element(group, "line", { class: "interval", ...ends });
  }
  if (series.kind !== "points" && usable.length) {
    let path = "", previous = null;
    for (const each of series.values) {  // a gap where a value is unknown
      if (!usable.includes(each)) { previous = null; continue; }
      if (series.kind === "steps" && previous) path += `H${x.at(each.x).toFixed(1)}`;
      path += `${previous ? "L" : "M"}${x.at(each.x).toFixed(1)} ${y.at(each.y).toFixed(1)}`;
      previous = each;
    }
    element(group, "path", { class: "line", d: path });
  }
  if (series.kind === "points" || series.dots) {
    let labelled = { x: -Infinity, y: -Infinity };
    for (const each of usable) {
      element(group, "circle", { cx: x.at(each.x), cy: y.at(each.y), r: each.big ? 6 : 3.5 });
      const place = { x: x.at(each.x) + 6, y: y.at(each.y) - 7 };
      if (!each.label || Math.hypot(place.x - labelled.x, place.y - labelled.y) < 26) continue;
      element(group, "text", { class: "label", ...place }, each.label);
      labelled = place;
    }
  }
}

const MARK_CHARACTER = 7.2; // pixels, at most

// Each text is in the first row where it overlaps no other one; texts are above all lines.
function drawMarks(svg, spec, x, y, box) {
  const rows = [];
  const marks = (spec.marks ?? []).filter((mark) => mark.x >= x.low && mark.x <= x.high);
  for (const mark of marks) {
    const at = x.at(mark.x);
    element(svg, "line", { class: "rule", x1: at, x2: at, y1: box.top, y2: box.bottom });
  }
  for (const mark of marks) {
    const at = x.at(mark.x), width = mark.text.length * MARK_CHARACTER, mirrored = at + 4 + width > box.right;
    const from = mirrored ? at - 4 - width : at + 4, to = from + width;
    let row = rows.findIndex((taken) => taken.every((other) => to + 6 < other.from || from > other.to + 6));
    if (row < 0) row = rows.push([]) - 1;
    rows[row].push({ from, to });
    element(svg, "text", { class: "mark", x: at + (mirrored ? -4 : 4), y: box.top + 12 + row * 15, "text-anchor": mirrored ? "end" : "start" }, mark.text);
  }
  for (const rule of spec.rules ?? []) {
    if (!(rule.y >= y.low && rule.y <= y.high)) continue;
    element(svg, "line", { class: "rule", x1: box.left, x2: box.right, y1: y.at(rule.y), y2: y.at(rule.y) });
    element(svg, "text", { class: "mark", x: box.right - 4, y: y.at(rule.y) - 5, "text-anchor": "end" }, rule.text);
  }
}

function describe(each, series, spec) {
  const format = FORMATS[spec.rows ? spec.x.format : spec.y.format];
  const value = spec.rows ? each.x : each.y - (series.stacked ? each.low : 0);
  const between = !series.stacked && Number.isFinite(each.low) && Number.isFinite(each.high) ? ` (${format(each.low)} to ${format(each.high)})` : "";
  return `${format(value)}${between}`;
}

function cursor(svg, tip, shown, x, y, spec, height) {
  const middle = (each) => (each.x0 === undefined ? x.at(each.x) : (x.at(each.x0) + x.at(each.x)) / 2);
  const place = spec.rows ? (each) => y.at(each.y) : middle;
  const all = shown.flatMap((series) => series.values.filter((each) => Number.isFinite(each.y)));
  const stops = [...new Set(all.map((each) => Math.round(place(each) * 10) / 10))].filter(Number.isFinite).sort((a, b) => a - b);
  if (!stops.length) return;
  const line = element(svg, "line", { class: "cursor", visibility: "hidden" });
  let current = -1;
  const show = (index) => {
    current = Math.max(0, Math.min(stops.length - 1, index));
    const at = stops[current];
    const ends = spec.rows ? { x1: MARGIN.left, x2: svg.viewBox.baseVal.width, y1: at, y2: at } : { x1: at, x2: at, y1: MARGIN.top, y2: height - MARGIN.bottom };
    for (const [key, value] of Object.entries({ ...ends, visibility: "visible" })) line.setAttribute(key, value);
    tip.replaceChildren();
    let head = null;
    for (const series of shown) {
      const each = series.values.find((one) => Number.isFinite(one.y) && Math.abs(place(one) - at) < 0.6);
      if (!each) continue;
      const title = spec.rows ? spec.rows[spec.rows.length - 1 - each.y] : each.at ?? `${spec.x.short ?? spec.x.label}: ${FORMATS[spec.x.format](each.x)}`;
      if (head === null) head = element(tip, "strong", {}, title);
      element(tip, "div", {}, `${series.name}: ${describe(each, series, spec)}`);
    }
    tip.hidden = head === null;
    const box = svg.getBoundingClientRect(), room = tip.parentElement.clientWidth;
    const left = spec.rows ? room / 2 : at * (box.width / svg.viewBox.baseVal.width);
    tip.style.left = `${Math.min(Math.max(left + 10, 0), Math.max(room - tip.offsetWidth - 4, 0))}px`;
    tip.style.top = spec.rows ? `${Math.max(at - 60, 0)}px` : "20px";
  };
  const hide = () => { tip.hidden = true; line.setAttribute("visibility", "hidden"); current = -1; };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), view = svg.viewBox.baseVal;
    const at = spec.rows ? (event.clientY - box.top) * (view.height / box.height) : (event.clientX - box.left) * (view.width / box.width);
    let best = 0;
    stops.forEach((stop, index) => { if (Math.abs(stop - at) < Math.abs(stops[best] - at)) best = index; });
    show(best);
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[event.key];
    if (step) show(current + step);
    else if (event.key === "Home") show(0);
    else if (event.key === "End") show(stops.length - 1);
    else if (event.key === "Escape") hide();
    else return;
    event.preventDefault();
  });
}

function valueTable(figure, spec) {
  const details = element(figure, "details");
  element(details, "summary", {}, "Values");
  details.addEventListener("toggle", () => {
    if (details.querySelector("table")) return;
    const scroll = element(details, "div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Values: ${spec.title}` });
    const table = element(scroll, "table");
    element(table, "caption", { class: "unseen" }, spec.title);
    const head = element(element(table, "thead"), "tr");
    for (const title of [spec.rows ? "Quantity" : spec.x.label, ...spec.series.map((series) => series.name)]) element(head, "th", { scope: "col" }, title);
    const body = element(table, "tbody");
    const key = (each) => (spec.rows ? spec.rows[spec.rows.length - 1 - each.y] : each.at ?? FORMATS[spec.x.format](each.x));
    const rows = new Map();
    spec.series.forEach((series, index) => series.values.forEach((each) => {
      if (!Number.isFinite(each.y)) return;
      if (!rows.has(key(each))) rows.set(key(each), []);
      rows.get(key(each))[index] = describe(each, series, spec);
    }));
    for (const [title, cells] of rows) {
      const row = element(body, "tr");
      element(row, "th", { scope: "row" }, title);
      spec.series.forEach((_, index) => element(row, "td", {}, cells[index] ?? ""));
    }
  });
}
