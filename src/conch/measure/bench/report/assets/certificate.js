"use strict";
// What the plots of a certificate show. The document is the one of `--json`.

const PERCENTILES = ["50", "90", "99", "99.9"];
const known = (value) => value !== null && value !== undefined && Number.isFinite(value);
const point = (x, estimate, more = {}) => ({ x, y: estimate?.value ?? NaN, low: estimate?.low ?? NaN, high: estimate?.high ?? NaN, ...more });

async function readDocument() {
  const node = document.getElementById("certificate");
  if (node.dataset.encoding !== "gzip") return JSON.parse(node.textContent);
  const bytes = Uint8Array.from(atob(node.textContent), (each) => each.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

// The buckets of a histogram as bars, at most about 70 of them.
function buckets(distribution) {
  const edges = distribution.histogram;
  let growth = 1.05;
  for (let n = 1; n < edges.length; n++) growth = Math.min(n === 1 ? Infinity : growth, edges[n][0] / edges[n - 1][0]);
  if (!(growth > 1)) growth = 1.05;
  const step = Math.log(growth) * Math.max(1, Math.ceil(Math.log(edges.at(-1)[0] / edges[0][0]) / Math.log(growth) / 70));
  const top = Math.log(edges.at(-1)[0]);
  const bars = new Map();
  for (const [edge, count] of edges) {
    const index = Math.floor((top - Math.log(edge)) / step + 1e-6);
    bars.set(index, (bars.get(index) ?? 0) + count);
  }
  return [...bars].sort(([a], [b]) => b - a).map(([index, count]) => {
    const x = Math.exp(top - index * step), x0 = Math.exp(top - (index + 1) * step);
    return { x0, x, y: count / distribution.count, at: `${FORMATS.time(x0)} to ${FORMATS.time(x)}` };
  });
}

function cumulative(distribution) {
  let sum = 0;
  return distribution.histogram.map(([edge, count]) => ({ x: edge, y: (sum += count) / distribution.count }));
}

function spectrum(distribution) {
  const points = cumulative(distribution).filter((each) => each.y < 1).map((each) => ({ x: 1 / (1 - each.y), y: each.x }));
  return [...points, { x: distribution.count, y: distribution.max, at: `maximum of ${distribution.count.toLocaleString("en")}` }];
}

function percentileMarks(distribution) {
  return PERCENTILES.filter((name) => distribution.percentiles[name] && distribution.count * (1 - name / 100) >= 1)
    .map((name) => ({ x: distribution.percentiles[name].value, text: `P${name} ${FORMATS.time(distribution.percentiles[name].value)}` }));
}

// A few levels that stand for all: the first and the last, and some between them.
function representative(levels, count) {
  if (levels.length <= count) return levels;
  return Array.from({ length: count }, (_, index) => levels[Math.round((index * (levels.length - 1)) / (count - 1))]);
}

const isTokens = (levels) => levels.some((each) => each.tokens);
const workOf = (each) => (each.tokens ? each.tokens.output_rate : each.throughput);

function plotLevels(parent, levels, saturation) {
  const numeric = levels.filter((each) => each.level.kind !== "trace").sort((a, b) => a.level.value - b.level.value);
  if (numeric.length < 2) return;
  const unit = isTokens(levels) ? "output tok/s" : "requests/s";
  const load = numeric[0].level.kind === "rate" ? "offered requests/s" : "concurrency";
  const values = numeric.map((each) => point(each.level.value, workOf(each)));
  const first = values[0];
  const highest = Math.max(...values.map((each) => each.y));
  const end = Math.min(values.at(-1).x, (first.x / first.y) * highest * 1.2);  // where the line leaves the plot
  const stops = Array.from({ length: 25 }, (_, n) => first.x * (end / first.x) ** (n / 24));  // a curve on a logarithmic axis
  const ideal = stops.map((x) => ({ x, y: (first.y / first.x) * x }));
  const found = numeric.find((each) => saturation?.reached && each.level.label === saturation.level);
  const marks = found ? [{ x: found.level.value, text: "saturation" }] : [];
  const log = numeric.at(-1).level.value / numeric[0].level.value > 12;
  plot(parent, {
    title: `Throughput over ${load}`, summary: saturation?.message ?? "",
    x: { label: load, format: "number", log, ticks: numeric.length < 8 ? numeric.map((each) => each.level.value) : undefined },
    y: { label: unit, format: "number" },
    series: [
      { name: unit, kind: "line", dots: true, values },
      { name: "linear scaling", kind: "line", dashed: true, color: 7, values: ideal },
    ],
    marks,
  });
  const curve = (name) => numeric.filter((each) => each.latency?.percentiles[name]).map((each) => ({
    ...point(workOf(each).value, each.latency.percentiles[name]), label: name === "50" ? each.level.label : "",
    at: `${load} ${each.level.label}: ${FORMATS.number(workOf(each).value)} ${unit}`, big: each === found,
  }));
  plot(parent, {
    title: "Latency over throughput", summary: `One point for each level, labelled with its ${load}.`,
    x: { label: unit, format: "number" }, y: { label: "latency", format: "time", log: true },
    series: ["50", "95", "99"].map((name) => ({ name: `P${name}`, kind: "line", dots: true, values: curve(name) })),
  });
}

function plotDistribution(parent, title, distribution, slo) {
  if (!distribution?.histogram.length) return;
  const marks = percentileMarks(distribution);
  const bars = buckets(distribution);
  if (known(slo)) marks.push({ x: slo, text: `SLO ${FORMATS.time(slo)}` });
  plot(parent, {
    title, summary: `${distribution.count.toLocaleString("en")} values; mean ${FORMATS.time(distribution.mean.value)}, maximum ${FORMATS.time(distribution.max)}.`,
    x: { label: "time (logarithmic)", short: "time", format: "time", log: true, tight: true },
    y: { label: "share", format: "percent", include: [Math.max(...bars.map((each) => each.y)) * (1.1 + 0.07 * marks.length)] },
    series: [{ name: "share", kind: "bars", values: bars }],
    marks: marks.sort((a, b) => a.x - b.x),
  });
}

function plotCumulative(parent, levels) {
  const usable = representative(levels.filter((each) => each.latency?.histogram.length), 7);
  if (!usable.length) return;
  plot(parent, {
    title: "Cumulative latency", summary: "The share of requests answered within a time.",
    x: { label: "latency (logarithmic)", short: "within", format: "time", log: true, tight: true },
    y: { label: "share of requests", format: "percent", include: [0, 1], tight: true },
    series: usable.map((each) => ({ name: each.level.label, kind: "line", values: cumulative(each.latency) })),
  });
}

function plotSpectrum(parent, levels, chosen) {
  const usable = representative(levels.filter((each) => each.latency?.histogram.length), 6);
  if (usable.length && chosen.latency && !usable.includes(chosen)) usable.splice(1, 1, chosen);
  if (!usable.length) return;
  const most = Math.max(...usable.map((each) => each.latency.count));
  const series = usable.map((each, index) => ({ name: each.level.label, kind: "line", color: index, values: spectrum(each.latency) }));
  const service = chosen.service_latency;
  if (service?.histogram.length && service.percentiles["99"] && chosen.latency
    && Math.abs(service.percentiles["99"].value / chosen.latency.percentiles["99"].value - 1) > 0.05) {
    series.push({ name: `${chosen.level.label}, from sending`, kind: "line", dashed: true, color: 7, values: spectrum(service) });
  }
  plot(parent, {
    title: "Percentile spectrum", summary: "Both axes are logarithmic; to the right are the slowest requests.",
    x: { label: "percentile", short: "percentile", format: "percentile", log: true, tight: true, include: [1], ticks: [1, 2, 10, 100, 1000, 1e4, 1e5, 1e6].filter((each) => each <= most) },
    y: { label: "latency", format: "time", log: true },
    series,
  });
}

function plotTime(parent, chosen) {
  const { series, warm_up_s: warm, window_s: window } = chosen;
  const end = warm + window + 0.1;  // the last second is not a whole one
  const lines = (names) => names.filter((name) => series[name]?.length && (name !== "errors" || series[name].some(Boolean))).map((name) => ({
    name: { in_flight: "in flight", throughput: "requests/s", p50: "P50", p99: "P99" }[name] ?? name.replaceAll("_", " "),
    kind: "line", values: series[name].map((y, second) => ({ x: second, y: y ?? NaN })).filter((each) => each.x + 1 <= end || each.x < 3),
  }));
  const bands = warm > 0 ? [{ from: 0, to: warm, text: "warm-up" }] : [];
  const marks = [{ x: warm + window, text: "end of window" }];
  const plots = [
    ["Throughput over time", ["throughput", "errors"], { label: "per second", format: "number" }],
    ["Latency over time", ["p50", "p99"], { label: "latency", format: "time", log: true }],
    ["Tokens over time", ["output_tokens", "input_tokens"], { label: "tokens/s", format: "number" }],
    ["Responses over time", ["responses"], { label: "responses/s", format: "number" }],
    ["Requests in flight and queued", ["in_flight", "queue"], { label: "requests", format: "number" }],
    ["Processor use over time", Object.keys(series).filter((name) => /cpu|gpu|utilization/.test(name) && !/power|memory/.test(name)), { label: "", format: "number" }],
  ];
  for (const [title, names, y] of plots) {
    const found = lines(names);
    if (!found.length || (title.startsWith("Requests") && found.length === 1 && new Set(series[names[0]].slice(2, -2)).size < 2)) continue;
    plot(parent, { title, x: { label: "seconds since the start", short: "second", format: "number", tight: true }, y, series: found, bands, marks });
  }
}

const PARTS = [["queue", "queue_s"], ["compute input", "compute_input_s"], ["compute inference", "compute_infer_s"], ["compute output", "compute_output_s"]];

function plotServer(parent, levels) {
  const usable = levels.filter((each) => each.latency && (known(each.server?.queue_s) || known(each.server?.compute_s)));
  if (!usable.length) return;
  const split = usable.some((each) => known(each.server.compute_infer_s));
  const parts = split ? PARTS : [["queue", "queue_s"], ["compute", "compute_s"]];
  const sums = usable.map(() => 0);
  const stack = (name, value) => ({
    name, kind: "bars", stacked: true, gap: 0,
    values: usable.map((each, index) => {
      const low = sums[index], y = (sums[index] += Math.max(value(each, low) ?? 0, 0));
      return { x0: index + 0.15, x: index + 0.85, low, y, at: `${each.level.kind} ${each.level.label}` };
    }),
  });
  const series = parts.map(([name, field]) => stack(name, (each) => each.server[field]));
  series.push({ ...stack("network, HTTP and client", (each, below) => each.latency.mean.value - below), color: 7 });
  plot(parent, {
    title: "Where the time goes", summary: "Mean time of a request: what the server's own metrics report, and the rest of the latency that the client saw.",
    x: {
      label: usable[0].level.kind, format: "number", tight: true, include: [0, usable.length],
      names: usable.map((each) => each.level.label), ticks: usable.map((_, index) => index + 0.5),
    },
    y: { label: "mean time", format: "time" },
    series,
  });
}

function plotEffects(parent, effects) {
  const usable = effects.filter((each) => known(each.change.value));
  if (!usable.length) return;
  const rows = usable.map((each) => `${each.level}: ${each.quantity}`);
  const colors = { better: 2, worse: 5 };
  const at = (verdict) => usable.map((each, index) => ({ each, index })).filter(({ each }) => (each.verdict in colors ? each.verdict : "undecided") === verdict)
    .map(({ each, index }) => ({ x: each.change.value, y: usable.length - 1 - index, low: each.change.low ?? NaN, high: each.change.high ?? NaN }));
  plot(parent, {
    title: "Effects with their intervals of 95 %", summary: "The change from A to B. An interval that holds 0 decides nothing.",
    rows, x: { label: "change from A to B", format: "change", zero: false, include: [0] }, y: { label: "", format: "number" },
    series: ["better", "worse", "undecided"].map((name) => ({ name, kind: "points", color: colors[name] ?? 7, values: at(name) })).filter((each) => each.values.length),
    marks: [{ x: 0, text: "" }],
  });
}

function drawLevel(parent, levels, chosen) {
  parent.replaceChildren();
  plotDistribution(parent, `Latency at ${chosen.level.kind} ${chosen.level.label}`, chosen.latency, chosen.slo.latency);
  plotSpectrum(parent, levels, chosen);
  plotDistribution(parent, "Time to first token", chosen.tokens?.first_token, chosen.slo.ttft);
  plotDistribution(parent, "Time between tokens", chosen.tokens?.inter_token, chosen.slo.itl);
  plotDistribution(parent, "Time to first response", chosen.responses?.first, chosen.slo.ttft);
  plotDistribution(parent, "Time between responses", chosen.responses?.gap, chosen.slo.itl);
  plotTime(parent, chosen);
}

function levelChoice(parent, levels, saturation, changed) {
  const start = Math.max(levels.findIndex((each) => each.level.label === saturation?.level), 0);
  if (levels.length > 1) {
    const fieldset = element(parent, "fieldset");
    element(fieldset, "legend", {}, `Level (${levels[0].level.kind})`);
    levels.forEach((each, index) => {
      const label = element(fieldset, "label");
      const input = element(label, "input", { type: "radio", name: "level", ...(index === start ? { checked: "" } : {}) });
      label.append(each.level.label);
      input.addEventListener("change", () => changed(each));
    });
  }
  changed(levels[start]);
}

async function main() {
  const certificate = await readDocument();
  const levels = certificate.measurements.filter((each) => each.requests);
  const section = (name) => document.getElementById(name);
  if (levels.length) {
    const many = section("level-plots");
    plotLevels(many, levels, certificate.saturation);
    plotCumulative(many, levels);
    plotServer(many, levels);
    levelChoice(section("level-choice"), levels, certificate.saturation, (chosen) => drawLevel(section("one-level-plots"), levels, chosen));
  }
  if (certificate.ab) plotEffects(section("effect-plots"), certificate.ab.effects);
  const copy = section("copy");
  copy.addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(section("command").textContent); copy.textContent = "Copied"; }
    catch { getSelection().selectAllChildren(section("command")); }
  });
  document.documentElement.dataset.ready = "yes";
}

main();
