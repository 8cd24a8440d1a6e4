// Who sends to whom, and how much: a ring of workers in order of hosts where they are few, a matrix where they are many. Where the
// strategy divides workers into groups, who averages with whom has a colour and a number.

const topology = { canvas: document.getElementById("topology"), spots: [], cells: null };

const WORKERS_IN_RING = 24;

// Beside a matrix: how wide a bar of a wire in full use is, and what bars and names of racks take together.
const WIRE = 48;
const BESIDE = 104;

// Bytes a second from one rank to another, as each worker last said.
function flows() {
  const found = [];
  for (const rank of model.sightings.keys()) {
    for (const [to, perSecond] of latest(rank)?.sent ?? []) if (to !== rank) found.push({ from: rank, to, rate: perSecond });
  }
  return found;
}

function drawTopology() {
  const { pencil, width, height } = prepared(topology.canvas);
  const hosts = groups();
  const count = model.view?.workers.length ?? 0;
  const all = flows();
  showGroups();
  showTree();
  topology.spots = [];
  topology.cells = null;
  if (count === 0) {
    words(pencil, "Workers have not met yet.", width / 2, height / 2, colours.soft, "center");
    return;
  }
  const most = Math.max(1, ...all.map((flow) => flow.rate));
  const racks = new Set(hosts.map((group) => group.rack).filter((rack) => rack != null)).size;
  const several = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;
  const places = [several(count, "worker"), several(hosts.length, "host")];
  if (racks > 0) places.push(several(racks, "rack"));
  document.getElementById("topology-note").textContent = `${places.join(", ")}; the busiest link carries ${rate(all.length ? most : 0)}`;
  if (count <= WORKERS_IN_RING) drawRing(pencil, width, height, hosts, all, most);
  else drawMatrix(pencil, width, height, hosts, all, most, count);
}

// Racks, uplinks and hosts as a tree, where it is known how they are joined; contended links are marked.
function showTree() {
  const { links = [], uplinks = [] } = model.view ?? {};
  const place = document.getElementById("topology-places");
  place.hidden = links.length === 0;
  const version = place.hidden ? null : model.view.version;
  if (version === topology.shown) return;
  topology.shown = version;
  if (place.hidden) return;
  const item = (text, contended) => {
    const made = document.createElement("li");
    const span = document.createElement("span");
    span.textContent = contended ? `${text}, contended` : text;
    if (contended) span.className = "contended";
    made.append(span);
    return made;
  };
  const microseconds = (seconds) => `${Math.round(seconds * 1e6)} µs`;
  const racks = new Map();
  for (const link of links) racks.set(link.rack ?? 0, [...(racks.get(link.rack ?? 0) ?? []), link]);
  const tree = document.getElementById("topology-tree");
  tree.replaceChildren();
  for (const [number, hosts] of [...racks].sort(([one], [other]) => one - other)) {
    const uplink = uplinks[number];
    const together = hosts.reduce((sum, link) => sum + link.rate, 0);
    const carries = uplink ? `: uplink ${rate(uplink.rate)}, ${microseconds(uplink.latency)}, ${(together / uplink.rate).toFixed(1)}:1` : "";
    const rack = item(`rack ${number}${carries}`, uplink?.contended);
    const inside = document.createElement("ul");
    for (const link of hosts) inside.append(item(`${link.host}: ${rate(link.rate)}, ${microseconds(link.latency)}`, link.contended));
    rack.append(inside);
    tree.append(rack);
  }
  const marked = [...links, ...uplinks].filter((link) => link.contended).length;
  const count = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;
  const note = `Where hosts sit: ${count(racks.size, "rack")}, ${count(links.length, "host")}`;
  set("topology-places-note", marked ? `${note}, ${count(marked, "contended link")}` : note);
  // A few lines need no click.
  if (links.length <= 12) place.open = true;
}

// Hues that are far apart, however many there are; as light as the theme wants them.
function groupColour(at) {
  return `hsl(${(210 + 137.5 * at) % 360} 60% ${colours.group})`;
}

// The groups in words, below the drawing.
function showGroups() {
  const place = document.getElementById("topology-groups");
  const { step, groups, parts } = model.division ?? {};
  place.hidden = groups == null;
  if (place.hidden) return;
  const part = parts > 1 ? ` (the first of ${parts} parts of it)` : "";
  set("topology-groups", `Groups of step ${step}, for what is mixed${part}: ${listed(groups)}`);
}

function groupText(rank) {
  const at = model.division?.of.get(rank);
  return at == null ? [] : [`group ${at + 1} in step ${model.division.step}: ${listed([model.division.groups[at]], 60)}`];
}

function drawRing(pencil, width, height, hosts, all, most) {
  const centre = { x: width / 2, y: height / 2 };
  // Between workers and names of hosts, for the numbers of groups.
  const room = model.division ? 10 : 0;
  const radius = Math.min(width / 2 - 90, height / 2 - 44) - room;
  const gap = hosts.length > 1 ? 0.5 : 0;
  const ranks = hosts.reduce((sum, group) => sum + group.ranks.length, 0);
  const unit = (2 * Math.PI) / (ranks + gap * hosts.length);
  const at = (angle, away) => ({ x: centre.x + away * Math.cos(angle), y: centre.y + away * Math.sin(angle) });
  const spots = new Map();
  let angle = -Math.PI / 2 - (unit * ((hosts[0]?.ranks.length ?? 1) - 1)) / 2;
  for (const group of hosts) {
    const from = angle;
    for (const rank of group.ranks) {
      spots.set(rank, { ...at(angle, radius), angle, rank });
      angle += unit;
    }
    const to = angle - unit;
    pencil.strokeStyle = colours.line;
    pencil.lineWidth = 26;
    pencil.lineCap = "round";
    pencil.beginPath();
    pencil.arc(centre.x, centre.y, radius, from - 0.001, to + 0.001);
    pencil.stroke();
    pencil.lineCap = "butt";
    const label = at((from + to) / 2, radius + 26 + room);
    const side = Math.cos((from + to) / 2);
    const use = wireUse(group.host);
    const name = `${group.host}${group.rack == null ? "" : ` (rack ${group.rack})`}${use == null ? "" : `, wire ${percent(use)}`}`;
    words(pencil, fitting(pencil, name, 130), label.x, label.y, colours.soft, Math.abs(side) < 0.3 ? "center" : side > 0 ? "left" : "right");
    angle += gap * unit;
  }
  for (const flow of [...all].sort((one, other) => one.rate - other.rate)) {
    const [from, to] = [spots.get(flow.from), spots.get(flow.to)];
    if (from && to) arrow(pencil, centre, radius, from, to, flow, most);
  }
  for (const spot of spots.values()) {
    const seen = latest(spot.rank);
    pencil.fillStyle = colours.panel;
    pencil.strokeStyle = spot.rank === selected ? colours.ink : colours.computing;
    pencil.lineWidth = spot.rank === selected ? 3 : 2;
    pencil.beginPath();
    pencil.arc(spot.x, spot.y, 12, 0, 7);
    pencil.fill();
    pencil.stroke();
    if (seen) {
      pencil.strokeStyle = colours.waiting;
      pencil.beginPath();
      pencil.arc(spot.x, spot.y, 12, -Math.PI / 2, -Math.PI / 2 + 2 * Math.PI * seen.waiting);
      pencil.stroke();
    }
    words(pencil, `${spot.rank}`, spot.x, spot.y + 0.5, colours.ink, "center");
    drawGroupOf(pencil, spot);
    topology.spots.push(spot);
  }
}

// Around a worker, the colour of its group; outside, where no arrows end, the group's number.
function drawGroupOf(pencil, spot) {
  const at = model.division?.of.get(spot.rank);
  if (at == null) return;
  pencil.strokeStyle = pencil.fillStyle = groupColour(at);
  pencil.lineWidth = 2.5;
  pencil.beginPath();
  pencil.arc(spot.x, spot.y, 14.5, 0, 7);
  pencil.stroke();
  const [x, y] = [spot.x + 19 * Math.cos(spot.angle), spot.y + 19 * Math.sin(spot.angle)];
  pencil.beginPath();
  pencil.arc(x, y, 8, 0, 7);
  pencil.fill();
  words(pencil, `${at + 1}`, x, y + 0.5, colours.panel, "center");
}

// A curve that keeps to the right, so that both ways are seen.
function arrow(pencil, centre, radius, from, to, flow, most) {
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const length = Math.hypot(dx, dy) || 1;
  const bend = 0.1 * length + 8;
  const middle = { x: (from.x + to.x) / 2 - (dy / length) * bend, y: (from.y + to.y) / 2 + (dx / length) * bend };
  const shorten = (end) => {
    const [vx, vy] = [end.x - middle.x, end.y - middle.y];
    const far = Math.hypot(vx, vy) || 1;
    return { x: end.x - (vx / far) * 14, y: end.y - (vy / far) * 14 };
  };
  const [begin, end] = [shorten(from), shorten(to)];
  const share = flow.rate / most;
  const mine = selected == null || selected === flow.from || selected === flow.to;
  pencil.globalAlpha = mine ? 0.25 + 0.75 * share : 0.08;
  pencil.strokeStyle = colours.communicating;
  pencil.fillStyle = colours.communicating;
  pencil.lineWidth = 0.8 + 4.2 * share;
  pencil.beginPath();
  pencil.moveTo(begin.x, begin.y);
  pencil.quadraticCurveTo(middle.x, middle.y, end.x, end.y);
  pencil.stroke();
  const towards = Math.atan2(end.y - middle.y, end.x - middle.x);
  const size = 5 + 4 * share;
  pencil.beginPath();
  pencil.moveTo(end.x + 3 * Math.cos(towards), end.y + 3 * Math.sin(towards));
  pencil.lineTo(end.x - size * Math.cos(towards - 0.45), end.y - size * Math.sin(towards - 0.45));
  pencil.lineTo(end.x - size * Math.cos(towards + 0.45), end.y - size * Math.sin(towards + 0.45));
  pencil.fill();
  pencil.globalAlpha = 1;
  if (share > 0.05 && model.sightings.size <= 8 && mine) {
    // Before the middle, where others cross.
    const spot = along(begin, middle, end, 0.3);
    const text = rate(flow.rate);
    const wide = pencil.measureText(text).width + 6;
    pencil.fillStyle = colours.panel;
    pencil.globalAlpha = 0.85;
    pencil.fillRect(spot.x - wide / 2, spot.y - 7, wide, 14);
    pencil.globalAlpha = 1;
    words(pencil, text, spot.x, spot.y, colours.soft, "center");
  }
}

// A point of a quadratic curve.
function along(begin, middle, end, share) {
  const [a, b, c] = [(1 - share) ** 2, 2 * share * (1 - share), share ** 2];
  return { x: a * begin.x + b * middle.x + c * end.x, y: a * begin.y + b * middle.y + c * end.y };
}

// A row for each sender, a column for each receiver, ordered by host.
function drawMatrix(pencil, width, height, hosts, all, most, count) {
  const uses = hosts.map((group) => wireUse(group.host));
  const beside = uses.some((use) => use != null) || hosts.some((group) => group.rack != null) ? BESIDE : 0;
  const size = Math.min(width - 90 - beside, height - 40);
  const left = (width - size - beside) / 2 + 20;
  const top = 24;
  const cell = size / count;
  const order = hosts.flatMap((group) => group.ranks);
  const place = new Map(order.map((rank, at) => [rank, at]));
  pencil.fillStyle = colours.faint;
  pencil.fillRect(left, top, size, size);
  drawGroupCells(pencil, place, left, top, cell);
  let at = 0;
  // A host's own workers, as a block on the diagonal.
  for (const group of hosts) {
    pencil.strokeStyle = colours.line;
    pencil.lineWidth = 1;
    pencil.strokeRect(left + at * cell, top + at * cell, group.ranks.length * cell, group.ranks.length * cell);
    at += group.ranks.length;
  }
  pencil.fillStyle = colours.communicating;
  for (const flow of all) {
    if (!place.has(flow.from) || !place.has(flow.to)) continue;
    const mine = selected == null || selected === flow.from || selected === flow.to;
    pencil.globalAlpha = (mine ? 1 : 0.25) * (0.2 + 0.8 * (flow.rate / most));
    const thick = Math.max(cell, 2);
    pencil.fillRect(left + place.get(flow.to) * cell, top + place.get(flow.from) * cell, thick, thick);
  }
  pencil.globalAlpha = 1;
  words(pencil, "to worker", left + size / 2, 8, colours.soft, "center");
  pencil.save();
  pencil.translate(left - 36, top + size / 2);
  pencil.rotate(-Math.PI / 2);
  words(pencil, "from worker", 0, 0, colours.soft, "center");
  pencil.restore();
  const every = Math.max(1, 2 ** Math.round(Math.log2(count / 8)));
  for (let rank = 0; rank < count; rank += every) {
    words(pencil, `${order[rank]}`, left - 8, top + (rank + 0.5) * cell, colours.soft, "right");
    words(pencil, `${order[rank]}`, left + (rank + 0.5) * cell, 19, colours.soft, "center");
  }
  if (beside > 0) drawWires(pencil, hosts, uses, left + size + 10, top, cell);
  topology.cells = { left, top, cell, order, all };
}

// In a matrix, where members of one group meet; and the group of each row as a stripe before it.
function drawGroupCells(pencil, place, left, top, cell) {
  (model.division?.groups ?? []).forEach((ranks, number) => {
    const spans = runs(ranks.map((rank) => place.get(rank)).filter((at) => at != null).sort((one, other) => one - other));
    pencil.fillStyle = groupColour(number);
    for (const [first, last] of spans) {
      const [from, tall] = [top + first * cell, (last + 1 - first) * cell];
      pencil.globalAlpha = 1;
      pencil.fillRect(left - 5, from, 4, tall);
      pencil.globalAlpha = 0.22;
      for (const [begin, end] of spans) pencil.fillRect(left + begin * cell, from, (end + 1 - begin) * cell, tall);
    }
  });
  pencil.globalAlpha = 1;
}

// Beside the rows of a matrix: what share of each host's wire is used, and which rack it is in.
function drawWires(pencil, hosts, uses, left, top, cell) {
  if (uses.some((use) => use != null)) words(pencil, "wires in use", left, 8, colours.soft);
  let row = 0;
  let rack = { name: null, row: 0 };
  const nameRack = () => {
    const [from, to] = [top + rack.row * cell, top + row * cell];
    if (rack.name == null) return;
    line(pencil, left + WIRE + 6, from + 2, left + WIRE + 6, to - 2, colours.line, 2);
    if (to - from > 12) words(pencil, `rack ${rack.name}`, left + WIRE + 12, (from + to) / 2, colours.soft);
  };
  hosts.forEach((group, at) => {
    if (group.rack !== rack.name) { nameRack(); rack = { name: group.rack, row }; }
    const [from, tall] = [top + row * cell, Math.max(1, group.ranks.length * cell - 1)];
    if (uses[at] != null) {
      pencil.fillStyle = colours.faint;
      pencil.fillRect(left, from, WIRE, tall);
      pencil.fillStyle = colours.communicating;
      pencil.fillRect(left, from, WIRE * Math.min(1, uses[at]), tall);
    }
    row += group.ranks.length;
  });
  nameRack();
}

function topologyText(event) {
  const box = topology.canvas.getBoundingClientRect();
  const [px, py] = [event.clientX - box.left, event.clientY - box.top];
  if (topology.cells) {
    const { left, top, cell, order, all } = topology.cells;
    const [to, from] = [order[Math.floor((px - left) / cell)], order[Math.floor((py - top) / cell)]];
    if (to == null || from == null) return null;
    const flow = all.find((one) => one.from === from && one.to === to);
    const lines = [`${from} on ${hostOf(from)} → ${to} on ${hostOf(to)}`, flow ? rate(flow.rate) : "nothing, or too little to be told"];
    return { rank: from, text: [...lines, ...groupText(from), ...wireText(hostOf(from))].join("\n") };
  }
  const spot = topology.spots.find((one) => Math.hypot(one.x - px, one.y - py) < 15);
  if (!spot) return null;
  const seen = latest(spot.rank);
  const sent = (seen?.sent ?? []).slice(0, 8).map(([to, perSecond]) => `→ ${to}: ${rate(perSecond)}`);
  return { rank: spot.rank, text: [`Worker ${spot.rank} on ${hostOf(spot.rank)}`, seen ? `${rate(seen.upload)} out, ${rate(seen.download)} in` : "nothing seen yet", ...sent, ...groupText(spot.rank), ...wireText(hostOf(spot.rank))].join("\n") };
}

function wireText(host) {
  const use = wireUse(host);
  return use == null ? [] : [`${percent(use)} of ${host}'s wire is used`];
}

function listenToTopology() {
  const readout = document.getElementById("topology-readout");
  topology.canvas.addEventListener("mousemove", (event) => showTip(event, topologyText(event)?.text));
  topology.canvas.addEventListener("mouseleave", hideTip);
  topology.canvas.addEventListener("click", (event) => {
    const found = topologyText(event);
    if (found) select(found.rank);
  });
  topology.canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    const count = model.view?.workers.length ?? 0;
    if (!step || count === 0) return;
    const next = selected == null ? 0 : (selected + step + count) % count;
    selected = null;
    select(next);
    const seen = latest(next);
    const sent = (seen?.sent ?? []).slice(0, 4).map(([to, perSecond]) => `to ${to} ${rate(perSecond)}`).join(", ");
    readout.textContent = `Worker ${next} on ${hostOf(next)} sends ${[sent || "nothing", ...groupText(next)].join("; ")}`;
    event.preventDefault();
  });
}
