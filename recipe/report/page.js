"use strict";
// Texts of models come into the document by textContent, option texts and attributes only: never as HTML.
const data = JSON.parse(document.getElementById("data").textContent);
const HOTTEST = 5; // nats: full colour
const AT_A_TIME = 200;
const byId = (id) => document.getElementById(id);

function make(tag, parent, { text, ...properties } = {}) {
  const element = Object.assign(document.createElement(tag), properties);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

// ---- curves

function draw(picture) {
  const card = make("div", byId("pictures"), { className: "plot-card" });
  if (picture.arm !== null) card.dataset.arm = picture.arm;
  make("h3", card, { text: picture.title });
  make("p", card, { className: "small", text: picture.caption });
  picture.plot = make("div", card, { className: "plot" });
}

function paint(picture) {
  const style = getComputedStyle(document.documentElement);
  const [text, line, card] = ["--soft", "--line", "--card"].map((name) => style.getPropertyValue(name).trim());
  const steps = new Set(picture.figure.data.flatMap((one) => one.x));
  const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true };
  const layout = {
    ...picture.figure.layout,
    font: { color: text, size: 12 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    hoverlabel: { bgcolor: card, font: { color: text } },
    margin: { l: 44, r: 8, t: 8, b: 40 },
    legend: { orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", font: { size: 11 } }, // off the axis' title
    xaxis: { ...axis, ...picture.figure.layout.xaxis, showgrid: false, tickformat: "d", ...(steps.size < 9 ? { dtick: 1 } : {}) },
    yaxis: { ...axis, exponentformat: "none" },
  };
  const many = picture.figure.data.filter((one) => one.showlegend !== false).length > 1;
  Plotly.react(picture.plot, picture.figure.data, { ...layout, showlegend: many }, { displayModeBar: false, responsive: true });
}

function choose(arm) {
  for (const select of document.querySelectorAll("select.arm")) select.value = arm;
  for (const element of document.querySelectorAll("[data-arm]")) element.hidden = element.dataset.arm !== arm;
  for (const picture of data.pictures) if (picture.arm === null || String(picture.arm) === arm) paint(picture);
}

data.pictures.forEach(draw);
for (const select of document.querySelectorAll("select.arm")) select.addEventListener("change", () => choose(select.value));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => choose(document.querySelector("select.arm")?.value ?? data.first));

// ---- refinements

const filters = byId("filters");
const signed = (value) => (value === null ? "–" : (value < 0 ? "−" : "+") + Math.abs(value).toFixed(2));
let found = [];
let shown = 0;
const hasTokens = data.rows.some((row) => row.tokens);
filters.querySelector("label.check").hidden = !hasTokens;
for (const part of [filters, byId("browser")]) part.hidden = !data.rows.length;

for (const row of data.rows) row.gain = row.refined_reward === null || row.reward === null ? null : row.refined_reward - row.reward;

function words(row) {
  const without = (other) => row.diff.filter(([kind]) => kind !== other).map(([, text]) => text).join("");
  row.words ??= [...data.chats[row.chat].map((one) => one[1]), without(1), without(-1)].join("\n").toLowerCase();
  return row.words;
}

function offer(name, values, label = (value) => value) {
  for (const value of values) make("option", filters.elements[name], { value, text: label(value) });
  for (const few of filters.querySelectorAll(`[data-few="${name}"]`)) few.hidden = values.length < 2;
}

offer("verdict", [...new Set(data.rows.map((row) => row.verdict))].sort(), (verdict) => data.verdicts[verdict] ?? verdict);
offer("source", [...new Set(data.rows.map((row) => row.data_source))].filter(Boolean).sort());
offer("run", data.runs.map((_, index) => index), (index) => data.runs[index]);

function filter() {
  const value = (name) => filters.elements[name].value;
  const wanted = value("words").toLowerCase();
  found = data.rows.filter(
    (row) =>
      (value("run") === "" || row.run === Number(value("run"))) &&
      (value("first") === "" || row.step >= Number(value("first"))) &&
      (value("last") === "" || row.step <= Number(value("last"))) &&
      (value("verdict") === "" || row.verdict === value("verdict")) &&
      (value("source") === "" || row.data_source === value("source")) &&
      (value("gain") === "" || (row.gain !== null && row.gain >= Number(value("gain")))) &&
      (!filters.elements.tokens.checked || row.tokens) &&
      (wanted === "" || words(row).includes(wanted)),
  );
  if (value("order") === "gain") found.sort((a, b) => (b.gain ?? -Infinity) - (a.gain ?? -Infinity) || Boolean(b.tokens) - Boolean(a.tokens) || a.diff.length - b.diff.length);
  byId("count").textContent = `${found.length} of ${data.rows.length}`;
  byId("list").replaceChildren();
  shown = 0;
  more();
  const first = Math.max(0, found.slice(0, AT_A_TIME).findIndex((row) => row.tokens));
  if (found.length) show(found[first], byId("list").querySelectorAll("button")[first]);
  else byId("detail").replaceChildren(data.rows.length ? "None is like that: change the filters." : "");
}

function more() {
  for (const row of found.slice(shown, shown + AT_A_TIME)) {
    const button = make("button", make("li", byId("list")), { type: "button" });
    make("span", button, { text: `step ${row.step}  ${signed(row.reward)} → ${signed(row.refined_reward)}` });
    if (data.runs.length > 1) make("small", button, { text: data.runs[row.run] });
    make("small", button, { text: `${data.verdicts[row.verdict] ?? row.verdict}${row.tokens ? " · by token" : ""} · ${data.chats[row.chat].at(-1)?.[1] ?? ""}` });
    button.addEventListener("click", () => show(row, button));
  }
  shown += AT_A_TIME;
  byId("more").hidden = shown >= found.length;
}

function show(row, button) {
  for (const chosen of byId("list").querySelectorAll(".chosen")) chosen.classList.remove("chosen");
  button.classList.add("chosen");
  const detail = byId("detail");
  detail.replaceChildren();
  const gain = `reward ${signed(row.reward)} → ${signed(row.refined_reward)}`;
  make("h3", detail, { text: `${data.runs.length > 1 ? `${data.runs[row.run]}, step` : "Step"} ${row.step}: ${data.verdicts[row.verdict] ?? row.verdict}, ${gain}${row.data_source ? `, ${row.data_source}` : ""}` });
  for (const [role, content] of data.chats[row.chat]) {
    make("p", detail, { className: "small", text: role });
    make("pre", detail, { className: "question", text: content });
  }
  if (row.images.length) {
    const pictures = make("p", detail, { className: "images" });
    row.images.forEach((name, place) => {
      if (data.images[name]) make("img", pictures, { src: data.images[name], alt: `image ${place + 1} of the question`, title: name });
    });
  }
  make("p", detail, { className: "small", text: row.refined_reward === null ? "response" : "response and refinement: red was taken out, green was added" });
  const both = make("pre", detail, { id: "diff" });
  for (const [kind, text] of row.diff) make({ "-1": "del", 0: "span", 1: "ins" }[kind], both, { text });
  for (const name of ["feedback", "detail"]) {
    if (row[name]) make("p", detail, { className: "small", text: { feedback: "what the reward says of the response", detail: "what became of the attempt" }[name] });
    if (row[name]) make("pre", detail, { text: row[name] });
  }
  if (row.tokens) heat(row.tokens, detail);
  else if (hasTokens) make("p", detail, { className: "small", text: "Numbers by token are recorded for up to eight responses of a step: see the filter." });
}

// ---- Figure 6

function heat({ response, refined, eta }, parent) {
  make("h3", parent, { text: "Token by token" });
  const legend = make("p", parent, { className: "legend" });
  const scale = make("span", legend, { text: "−log π_θ: 0" });
  make("span", scale, { className: "scale" });
  scale.append(`${HOTTEST} nats and more`);
  const charges = new Set(response.counterparts?.filter((place) => place >= 0));
  const imitates = Boolean(refined?.weights);
  const learns = imitates ? "imitated" : "a token of a is charged for it";
  const changed = response.charged ? "changed, not charged" : "changed";
  const marks = { free: `dotted: ${changed}`, "": "plain: kept", unknown: "hatched: not measured" };
  if (imitates || response.charged) marks.charged = `underlined: ${response.charged ? "charged" : "imitated"}`;
  for (const [name, text] of Object.entries(marks)) make("span", make("span", legend), { className: `token ${name}`, text });
  tokens("a, the response", response, parent, changed, (t) => {
    if (!response.charged || !(response.counterparts[t] >= 0 || response.charged[t] !== 0)) return undefined;
    const who = refined?.tokens[response.counterparts[t]];
    const said = who === undefined ? "" : ` for ${JSON.stringify(who)} of a′`;
    return ["charged", `charged ${(-response.charged[t]).toFixed(3)} nats × η = ${eta}${said}`];
  });
  if (!refined) return;
  tokens("a′, the refinement", refined, parent, changed, (t) =>
    (imitates ? refined.weights[t] > 0 : charges.has(t)) ? ["charged", learns] : undefined,
  );
}

function tokens(title, side, parent, changed, marked) {
  make("p", parent, { className: "small", text: title });
  const block = make("pre", parent, { className: "heat" });
  side.tokens.forEach((text, t) => {
    const value = side.log_probs === null ? null : side.log_probs[t];
    const [name, said] = marked(t) ?? (side.kept[t] ? ["kept", "kept"] : ["free", changed]);
    const token = make("span", block, { className: `token ${name}${value === null ? " unknown" : ""}`, text: text.replaceAll("\n", "⏎\n") });
    token.style.setProperty("--hot", value === null ? 0 : Math.min(1, -value / HOTTEST).toFixed(3));
    token.title = `${JSON.stringify(text)}: ${value === null ? "not measured" : `−log π_θ = ${(-value).toFixed(3)} nats`}; ${said}`;
    if (value !== null) token.dataset.logProb = value;
  });
}

filters.addEventListener("input", filter);
filters.addEventListener("submit", (event) => event.preventDefault());
byId("more").addEventListener("click", more);
filter();
setTimeout(() => {
  choose(data.first); // the text stands before the curves are drawn
  document.documentElement.dataset.ready = "yes";
});
