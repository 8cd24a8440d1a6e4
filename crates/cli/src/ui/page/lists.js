// Workers and decisions as text, which screens and keyboards can read.

const MOST_ROWS = 24;
const SHOWN_DECISIONS = 200;

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text != null) made.textContent = text;
  return made;
}

function drawMembers() {
  const place = document.getElementById("members");
  const members = memberList();
  const working = members.filter(trains).length;
  const others = members.length - working;
  document.getElementById("members-note").textContent = members.length === 0 ? "" : `${working} working${others ? `, ${others} otherwise` : ""}`;
  const focused = place.contains(document.activeElement) ? document.activeElement.dataset.rank : null;
  place.className = members.length <= MOST_ROWS ? "" : "cells-of-hosts";
  place.replaceChildren(members.length <= MOST_ROWS ? memberTable(members) : memberCells(members));
  if (focused != null) place.querySelector(`[data-rank="${focused}"]`)?.focus();
}

function trains(member) {
  return member.standing === "working" || member.standing === "slow";
}

// Those who are connected, or those of the view where nobody says who is.
function memberList() {
  if (model.members.length > 0) return model.members;
  return (model.view?.workers ?? []).map((worker, rank) => ({ rank, id: worker.id, host: worker.host, process: null, standing: "working", step: 0 }));
}

function memberTable(members) {
  const table = element("table");
  const head = element("tr");
  for (const title of ["Rank", "Host", "Process", "Is", "Step", "Waiting", "Out", "In"]) {
    const cell = element("th", null, title);
    cell.scope = "col";
    head.append(cell);
  }
  table.append(element("thead"));
  table.firstChild.append(head);
  const body = element("tbody");
  for (const member of members) {
    const row = element("tr", member.rank === selected && member.rank != null ? "selected" : "");
    const seen = member.rank == null ? null : latest(member.rank);
    const rank = element("td");
    if (member.rank == null) rank.textContent = "–";
    else {
      const button = element("button", "rank", `${member.rank}`);
      button.type = "button";
      button.dataset.rank = member.rank;
      button.setAttribute("aria-label", `Mark worker ${member.rank}`);
      button.setAttribute("aria-pressed", String(member.rank === selected));
      button.addEventListener("click", () => select(member.rank));
      rank.append(button);
    }
    const waiting = element("td");
    if (seen) {
      const share = element("span", "share");
      const part = element("i");
      part.style.width = `${100 * seen.waiting}%`;
      share.append(part);
      waiting.append(share, percent(seen.waiting));
    }
    const step = seen ? seen.step + seen.ends.length : member.step;
    row.append(
      rank,
      element("td", null, member.host || "–"),
      element("td", null, member.process ? `${member.process}` : "–"),
      element("td", `standing ${member.standing}`, member.standing),
      element("td", null, step ? `${step}` : "–"),
      waiting,
      element("td", null, seen ? rate(seen.upload) : "–"),
      element("td", null, seen ? rate(seen.download) : "–"),
    );
    body.append(row);
  }
  table.append(body);
  return table;
}

// A cell for each, in groups by host. One of them takes the keyboard's focus; arrows move it.
function memberCells(members) {
  const whole = document.createDocumentFragment();
  const hosts = new Map();
  for (const member of members) {
    if (!hosts.has(member.host)) hosts.set(member.host, []);
    hosts.get(member.host).push(member);
  }
  const cells = [];
  for (const [host, list] of hosts) {
    const group = element("div", "host-group");
    group.append(element("span", "host-name", host || "?"));
    const grid = element("div", "cells");
    for (const member of list) {
      const seen = member.rank == null ? null : latest(member.rank);
      const shade = seen ? `w${Math.min(4, Math.floor(8 * seen.waiting))}` : "";
      const cell = element("button", `cell ${trains(member) ? shade : "gone"} ${member.standing}`);
      cell.type = "button";
      cell.tabIndex = -1;
      cell.dataset.rank = member.rank;
      const words = seen ? `${percent(seen.waiting)} waiting, ${rate(seen.upload)} out` : "nothing seen yet";
      cell.setAttribute("aria-label", `Worker ${member.rank ?? "?"} on ${host}, ${member.standing}: ${words}`);
      cell.setAttribute("aria-pressed", String(member.rank != null && member.rank === selected));
      cells.push(cell);
      grid.append(cell);
    }
    group.append(grid);
    whole.append(group);
  }
  const first = cells.find((cell) => cell.dataset.rank === String(selected)) ?? cells[0];
  if (first) first.tabIndex = 0;
  return whole;
}

function listenToMembers() {
  const place = document.getElementById("members");
  const readout = document.getElementById("members-readout");
  place.addEventListener("click", (event) => {
    const cell = event.target.closest(".cell");
    if (cell?.dataset.rank) { select(Number(cell.dataset.rank)); readout.textContent = cell.getAttribute("aria-label"); }
  });
  place.addEventListener("mousemove", (event) => showTip(event, event.target.closest(".cell")?.getAttribute("aria-label")));
  place.addEventListener("mouseleave", hideTip);
  place.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    const cell = event.target.closest(".cell");
    if (!step || !cell) return;
    const cells = [...place.querySelectorAll(".cell")];
    const next = cells[cells.indexOf(cell) + step];
    if (next) {
      cell.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
      readout.textContent = next.getAttribute("aria-label");
    }
    event.preventDefault();
  });
}

const WORDS = { roll_back: "back", disappoint: "disappoints", confirm: "confirmed", ask: "asked", keep: "kept", void: "void", refused: "refused", switch: "switch", try: "tries", change: "change" };

function drawDecisionList() {
  const kept = document.getElementById("decisions-kept").checked;
  const shown = model.decisions.filter((one) => kept || (one.action !== "keep" && one.action !== "void"));
  const body = document.querySelector("#decisions tbody");
  const rows = shown.slice(-SHOWN_DECISIONS).reverse().map((one) => {
    const row = element("tr");
    const text = element("td", "text");
    text.append(element("span", `word ${one.action}`, WORDS[one.action] ?? one.action), one.text.replace(/^step \d+: /, ""));
    row.append(
      element("td", null, span((one.t - (model.began ?? one.t)) / 1000)),
      element("td", null, one.step == null ? "" : `${one.step}`),
      element("td", null, one.by),
      text,
      gainCell(one.predicted),
      gainCell(one.measured),
    );
    return row;
  });
  body.replaceChildren(...rows);
  document.getElementById("decisions-empty").hidden = rows.length > 0;
  document.getElementById("decisions").hidden = rows.length === 0;
}

function gainCell(factor) {
  const cell = element("td", "number");
  if (factor != null) cell.append(element("span", `gain ${factor >= 1.005 ? "up" : factor <= 0.995 ? "down" : ""}`, gain(factor)));
  return cell;
}
