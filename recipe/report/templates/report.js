
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
  return value === null ? "–" : (value < 0 ? "−" : "+") + Math.abs(value).toFixed(2);
}

// A row has its texts as pieces of a diff ([kind, text, ...]; -1 taken out, 0 kept, 1 put in), or as they are.
function side(row, which) {
  const box = element("pre");
  if (!row.pieces) box.append(which < 0 ? row.response : row.detail);
  for (let i = 0; i < (row.pieces ?? []).length; i += 2) {
    const kind = row.pieces[i];
    if (kind === 0) box.append(row.pieces[i + 1]);
    else if (kind === which) box.append(element(which < 0 ? "del" : "ins", row.pieces[i + 1]));
  }
  return box;
}

function makeRow(row) {
  const line = element("tr");
  const rewards = row.refined_reward === null ? signed(row.reward) : `${signed(row.reward)}\n→ ${signed(row.refined_reward)}`;
  const note = row.pieces ? "" : row.detail ? "not scored; what is known of it:" : "none";
  const cells = [
    [String(row.step)],
    [data.runs[row.run]],
    [element("span", row.verdict, `v-${row.verdict}`)],
    [element("span", rewards, "reward-pair")],
    [element("pre", data.prompts[row.prompt], "prompt")],
    [side(row, -1)],
    [element("div", note, "aside"), side(row, 1)],
  ];
  for (const parts of cells) line.insertCell().append(...parts);
  return line;
}

// Rows are made when they are shown, a page of them at a time.
const PAGE = 50;
let matching = [];
let numShown = 0;

function showMore() {
  byId("rows").tBodies[0].append(...matching.slice(numShown, numShown + PAGE).map(makeRow));
  numShown = Math.min(numShown + PAGE, matching.length);
  byId("more").hidden = numShown === matching.length;
  byId("shown").textContent = `${matching.length} of ${data.rows.length} match, ${numShown} shown`;
}

function filterRows() {
  const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const [verdict, run] = [byId("verdict").value, byId("run").value];
  matching = data.rows.filter((row) => {
    if ((verdict && row.verdict !== verdict) || (run && row.run !== Number(run))) return false;
    row.text ??= [data.prompts[row.prompt], side(row, -1).textContent, side(row, 1).textContent].join("\n").toLowerCase();
    return words.every((word) => row.text.includes(word));
  });
  byId("rows").tBodies[0].replaceChildren();
  numShown = 0;
  showMore();
}

if (byId("rows")) {
  for (const id of ["search", "verdict", "run"]) byId(id).addEventListener("input", filterRows);
  byId("more").addEventListener("click", showMore);
  filterRows();
}
