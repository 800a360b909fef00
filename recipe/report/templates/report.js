
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

// Every text of the runs goes through here as a text node: nothing in it is ever parsed as HTML.
function element(tag, text = "", classes = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  made.className = classes;
  return made;
}

function signed(value) {
  if (value === null || value === undefined) return "–";
  return (value < 0 ? "−" : "+") + Math.abs(value).toFixed(2);
}

// ---- curves: arms can be hidden, and a figure read

const hidden = new Set();

function marksOf(arm) {
  return document.querySelectorAll(`figure svg [id*="-arm-${arm}-"]`);
}

function setUpLegend() {
  for (const chip of document.querySelectorAll(".chip")) {
    const arm = chip.dataset.arm;
    chip.addEventListener("click", () => {
      const hide = !hidden.delete(arm);
      if (hide) hidden.add(arm);
      chip.setAttribute("aria-pressed", String(!hide));
      for (const mark of marksOf(arm)) mark.style.display = hide ? "none" : "";
    });
    const fade = (others) => {
      for (const mark of document.querySelectorAll('figure svg [id*="-arm-"]')) {
        const isPointed = mark.id.includes(`-arm-${arm}-`);
        mark.classList.toggle("faded", others && !isPointed);
        for (const path of mark.id.endsWith("-band") ? mark.querySelectorAll("*") : []) {
          path.classList.toggle("pointed", others && isPointed);
        }
      }
    };
    chip.addEventListener("pointerenter", () => fade(true));
    chip.addEventListener("pointerleave", () => fade(false));
  }
}

function readCurve(figure, curve, cursor, event) {
  const box = figure.getBoundingClientRect();
  const share = ((event.clientX - box.left) / box.width - curve.left) / (curve.right - curve.left);
  const wanted = curve.steps[0] + share * (curve.steps[1] - curve.steps[0]);
  const steps = Object.values(curve.lines).flatMap((points) => points.map((point) => point[0]));
  const step = steps.reduce((best, one) => (Math.abs(one - wanted) < Math.abs(best - wanted) ? one : best));
  const place = (step - curve.steps[0]) / (curve.steps[1] - curve.steps[0]);
  cursor.style.left = `${box.width * (curve.left + place * (curve.right - curve.left))}px`;
  const tip = byId("tip");
  tip.replaceChildren(element("b", `Step ${step}`));
  const values = Object.entries(curve.lines)
    .filter(([arm]) => !hidden.has(arm))
    .map(([arm, points]) => [arm, points.find((point) => point[0] === step)])
    .filter(([, point]) => point)
    .sort((one, other) => other[1][1] - one[1][1]);
  for (const [arm, [, mean, spread]] of values) {
    const line = element("div");
    const value = spread === null ? `${mean}` : `${mean} ± ${Number(spread.toPrecision(2))}`;
    line.append(element("span", data.arms[arm]), element("span", value));
    line.style.color = data.colours[arm];
    tip.append(line);
  }
  tip.hidden = false;
  const left = event.clientX + 18;
  tip.style.left = `${left + tip.offsetWidth > innerWidth ? event.clientX - 18 - tip.offsetWidth : left}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY + 12, innerHeight - tip.offsetHeight - 4))}px`;
}

function setUpCurves() {
  for (const figure of document.querySelectorAll("figure[data-curve]")) {
    const cursor = element("div", "", "cursor");
    cursor.style.cssText = "top: 18.5%; bottom: 15.5%";
    cursor.hidden = true;
    figure.append(cursor);
    figure.addEventListener("pointermove", (event) => {
      cursor.hidden = false;
      readCurve(figure, data.curves[figure.dataset.curve], cursor, event);
    });
    figure.addEventListener("pointerleave", () => { cursor.hidden = byId("tip").hidden = true; });
  }
}

// ---- token map

function ceColour(nats) {
  const stops = data.ceColours.map((colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16)));
  const place = Math.max(0, Math.min(1, nats / data.ceLimit)) * (stops.length - 1);
  const from = Math.min(stops.length - 2, Math.floor(place));
  const mix = stops[from].map((value, channel) => Math.round(value + (place - from) * (stops[from + 1][channel] - value)));
  return `rgb(${mix.join(",")})`;
}

function describe(token, place) {
  if (token[1] === null) return `token ${place + 1} ${JSON.stringify(token[0])}: no number`;
  return `token ${place + 1} ${JSON.stringify(token[0])}: ${(-token[1]).toFixed(2)} nats (probability ${Math.exp(token[1]).toPrecision(2)})`;
}

function choose(box, tokens, place) {
  for (const old of document.querySelectorAll(".tokens .chosen")) old.classList.remove("chosen");
  if (!tokens[place]) return;
  box.children[place].classList.add("chosen");
  byId("token-value").textContent = describe(tokens[place], place);
}

function showTokens(side, tokens) {
  const box = byId(`${side}-tokens`);
  box.replaceChildren(...tokens.map((token, place) => {
    const span = element("span", token[0].replaceAll("\n", "⏎\n"));
    if (token[1] !== null) span.style.backgroundColor = ceColour(-token[1]);
    span.title = describe(token, place);
    return span;
  }));
  const known = tokens.filter((token) => token[1] !== null);
  const mean = known.reduce((sum, token) => sum - token[1], 0) / known.length;
  const name = side === "response" ? "Response" : "Refinement";
  byId(`${side}-title`).textContent = `${name}: ${tokens.length} tokens` + (known.length ? `, mean ${mean.toFixed(2)} nats` : "");
  box.scrollTop = 0;
  box.onpointerover = (event) => {
    const place = [...box.children].indexOf(event.target);
    if (place >= 0) choose(box, tokens, place);
  };
  box.onkeydown = (event) => {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!move) return;
    event.preventDefault();
    const now = [...box.children].findIndex((span) => span.classList.contains("chosen"));
    choose(box, tokens, Math.max(0, Math.min(tokens.length - 1, now + move)));
  };
}

function setUpTokens() {
  const select = byId("pair");
  if (!select) return;
  const gain = (pair) => (pair.rewards.length ? pair.rewards[1] - pair.rewards[0] : -Infinity);
  data.pairs.forEach((pair, place) => {
    const parts = [`step ${pair.step}`];
    if (pair.rewards.length) parts.push(`reward ${pair.rewards.map(signed).join(" → ")}`);
    if (data.runs.length > 1) parts.push(data.runs[pair.run]);
    select.append(new Option(parts.join(" · "), place));
  });
  select.value = data.pairs.reduce((best, pair, place) => (gain(pair) > gain(data.pairs[best]) ? place : best), 0);
  const show = () => {
    const pair = data.pairs[select.value];
    showTokens("response", pair.response);
    showTokens("refined", pair.refined);
    byId("previous-pair").disabled = select.selectedIndex === 0;
    byId("next-pair").disabled = select.selectedIndex === data.pairs.length - 1;
  };
  const step = (by) => { select.selectedIndex += by; show(); };
  select.addEventListener("change", show);
  byId("previous-pair").addEventListener("click", () => step(-1));
  byId("next-pair").addEventListener("click", () => step(1));
  byId("scale-bar").style.background = `linear-gradient(90deg, ${data.ceColours.join(",")})`;
  show();
}

// ---- refinements: rows are made when they are shown, a page of them at a time

const PAGE = 50;
let matching = [];
let numShown = 0;

function textsOf(row) {
  if (!row.pieces) return [row.response, row.detail];
  let before = "", after = "";
  for (let i = 0; i < row.pieces.length; i += 2) {
    if (row.pieces[i] <= 0) before += row.pieces[i + 1];
    if (row.pieces[i] >= 0) after += row.pieces[i + 1];
  }
  return [before, after];
}

function diffSide(row, side) {
  const box = element("pre");
  for (let i = 0; i < row.pieces.length; i += 2) {
    const kind = row.pieces[i];
    if (kind === 0) box.append(row.pieces[i + 1]);
    else if (kind === side) box.append(element(side < 0 ? "del" : "ins", row.pieces[i + 1]));
  }
  return box;
}

function cell(...children) {
  const made = element("td");
  made.append(...children);
  return made;
}

function makeRow(row) {
  const line = element("tr");
  line.append(cell(String(row.step)));
  if (data.runs.length > 1) line.append(cell(data.runs[row.run]));
  const rewards = row.refined_reward === null ? signed(row.reward) : `${signed(row.reward)}\n→ ${signed(row.refined_reward)}`;
  const reward = element("span", rewards, "reward-pair");
  reward.style.whiteSpace = "pre";
  const verdict = element("span", row.verdict, `v-${row.verdict}`);
  verdict.title = data.verdicts[row.verdict] ?? "";
  line.append(cell(verdict), cell(reward));
  line.append(cell(element("pre", data.prompts[row.prompt], "prompt")));
  if (row.pieces) {
    line.append(cell(diffSide(row, -1)), cell(diffSide(row, 1)));
  } else {
    const note = element("div", row.detail ? "not scored; what is known of it:" : "none", "aside");
    line.append(cell(element("pre", row.response)), cell(note, element("pre", row.detail, "prompt")));
  }
  return line;
}

function addOpener(line) {
  const cut = [...line.querySelectorAll("pre")].filter((box) => box.scrollHeight > box.clientHeight + 2);
  if (!cut.length) return;
  for (const box of cut) box.classList.add("cut");
  const button = element("button", "more");
  button.type = "button";
  button.setAttribute("aria-expanded", "false");
  button.addEventListener("click", () => {
    const open = line.classList.toggle("open");
    button.textContent = open ? "less" : "more";
    button.setAttribute("aria-expanded", String(open));
  });
  line.firstElementChild.append(element("br"), button);
}

function showMore() {
  const made = matching.slice(numShown, numShown + PAGE).map(makeRow);
  byId("rows").tBodies[0].append(...made);
  made.forEach(addOpener);
  numShown += made.length;
  byId("more").hidden = numShown >= matching.length;
  const all = data.rows.length.toLocaleString("en");
  byId("shown").textContent = `${matching.length.toLocaleString("en")} of ${all} match, ${numShown.toLocaleString("en")} shown`;
}

function filterRows() {
  const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const [verdict, run] = [byId("verdict").value, byId("run").value];
  const first = byId("first-step").value === "" ? -Infinity : Number(byId("first-step").value);
  const last = byId("last-step").value === "" ? Infinity : Number(byId("last-step").value);
  matching = data.rows.filter((row) => {
    if ((verdict && row.verdict !== verdict) || (run && row.run !== Number(run)) || row.step < first || row.step > last) return false;
    if (!words.length) return true;
    row.text ??= [data.prompts[row.prompt], ...textsOf(row)].join("\n").toLowerCase();
    return words.every((word) => row.text.includes(word));
  });
  const gain = (row) => (row.refined_reward === null ? null : row.refined_reward - row.reward);
  const order = { step: (row) => row.step, gain: (row) => -(gain(row) ?? -Infinity), loss: (row) => gain(row) ?? Infinity }[byId("order").value];
  matching.sort((one, other) => (order(one) < order(other) ? -1 : order(one) > order(other) ? 1 : 0));
  byId("rows").tBodies[0].replaceChildren();
  numShown = 0;
  showMore();
}

function setUpRefinements() {
  if (!byId("rows")) return;
  let timer;
  for (const id of ["search", "first-step", "last-step"]) {
    byId(id).addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(filterRows, 120);
    });
  }
  for (const id of ["verdict", "run", "order"]) byId(id).addEventListener("change", filterRows);
  byId("more").addEventListener("click", showMore);
  byId("reset").addEventListener("click", () => {
    for (const id of ["search", "first-step", "last-step", "verdict", "run"]) byId(id).value = "";
    byId("order").value = "step";
    filterRows();
  });
  filterRows();
}

setUpLegend();
setUpCurves();
setUpTokens();
setUpRefinements();
