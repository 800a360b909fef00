
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

// ---- curves: arms can be hidden

function setUpLegend() {
  for (const chip of document.querySelectorAll(".chip")) {
    chip.addEventListener("click", () => {
      const hide = chip.getAttribute("aria-pressed") === "true";
      chip.setAttribute("aria-pressed", String(!hide));
      for (const mark of document.querySelectorAll(`figure svg [id*="-arm-${chip.dataset.arm}-"]`)) mark.style.display = hide ? "none" : "";
    });
  }
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
setUpRefinements();
