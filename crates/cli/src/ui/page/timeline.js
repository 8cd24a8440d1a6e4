// The last steps of every worker: what its program did above, what was under way below, so that overlap is what lies below blue.

const timeline = {
  canvas: document.getElementById("timeline"),
  readout: document.getElementById("timeline-readout"),
  frozen: false,
  step: null,
  rows: [],
  frame: null,
};

// Up to so many workers have names and lanes; more are drawn as stripes.
const WORKERS_WITH_LANES = 24;
const MOST_LANES = 5;
const STRIPES_HEIGHT = 640;
const BAND = 8;

function rowHeight(count) {
  if (count <= 8) return 58;
  if (count <= WORKERS_WITH_LANES) return 38;
  return Math.max(3, Math.min(14, Math.floor(STRIPES_HEIGHT / count)));
}

// Which sightings are drawn: of one step if most workers have shown it, else the last of each.
function chosenRows() {
  const steps = seenSteps();
  if (!timeline.frozen || !steps.includes(timeline.step)) timeline.step = steps[0] ?? null;
  const ranks = [...model.sightings.keys()].sort((one, other) => one - other);
  const rows = [];
  for (const rank of ranks) {
    rows.push({ rank, seen: timeline.step == null ? latest(rank) : sightingOf(rank, timeline.step) });
  }
  return rows;
}

function drawTimeline() {
  const rows = chosenRows();
  const height = rowHeight(rows.length);
  const head = 20;
  const wanted = `${Math.max(160, Math.ceil(head + rows.length * height + 8))}px`;
  if (timeline.canvas.style.height !== wanted) timeline.canvas.style.height = wanted;
  const { pencil, width } = prepared(timeline.canvas);
  timeline.rows = rows;
  const known = rows.filter((row) => row.seen);
  if (known.length === 0) {
    words(pencil, "Steps come into view when programs make them.", width / 2, 80, colours.soft, "center");
    timeline.frame = null;
    return;
  }
  const named = rows.length <= WORKERS_WITH_LANES;
  const left = named ? 118 : 46;
  const right = width - (named ? 132 : 10);
  // Clocks of hosts may differ; then each worker's steps begin at the left.
  const first = Math.min(...known.map((row) => row.seen.at));
  const longest = Math.max(...known.map((row) => row.seen.end));
  const apart = Math.max(...known.map((row) => row.seen.at)) - first > 3 * longest;
  const offset = (seen) => (apart ? 0 : seen.at - first);
  const end = Math.max(...known.map((row) => offset(row.seen) + row.seen.end));
  const x = (time) => left + (time / end) * (right - left);
  for (const at of ticks(0, end, Math.max(2, (right - left) / 120))) {
    line(pencil, x(at), head - 4, x(at), head + rows.length * height, colours.faint);
    words(pencil, microseconds(at), x(at), 8, colours.soft, "center");
  }
  rows.forEach((row, index) => {
    const top = head + index * height;
    if (named && row.rank === selected) {
      pencil.fillStyle = colours.faint;
      pencil.fillRect(0, top, width, height);
    }
    if (named) drawNamedRow(pencil, row, top, height, x, offset, left, right, width);
    else drawStripe(pencil, row, index, head, height, x, offset, rows.length);
  });
  timeline.frame = { x, left, right, head, height, end, offset, named };
  const from = Math.min(...known.map((row) => row.seen.step));
  const to = Math.max(...known.map((row) => row.seen.step + row.seen.ends.length - 1));
  const which = from === to ? `${from}` : `${from} to ${to}`;
  document.getElementById("timeline-title").textContent = `Last steps: ${which}${apart ? " (each from its own beginning: clocks differ)" : ""}`;
}

function drawNamedRow(pencil, { rank, seen }, top, height, x, offset, left, right, width) {
  words(pencil, `${rank}`, 8, top + 11, rank === selected ? colours.accent : colours.ink);
  words(pencil, fitting(pencil, hostOf(rank), left - 40), 30, top + 11, colours.soft);
  if (!seen) { words(pencil, "did not show this step", left + 6, top + 11, colours.soft); return; }
  const from = offset(seen);
  const program = height > 45 ? 16 : 11;
  const place = (span) => [x(from + span[0]), Math.max(0.6, x(from + span[1]) - x(from + span[0]))];
  pencil.fillStyle = colours.waiting;
  for (const span of seen.waits) { const [at, wide] = place(span); pencil.fillRect(at, top + 4, wide, program); }
  pencil.fillStyle = colours.computing;
  for (const span of seen.computing) { const [at, wide] = place(span); pencil.fillRect(at, top + 4, wide, program); }
  for (const end of [0, ...seen.ends]) line(pencil, x(from + end), top + 1, x(from + end), top + height - 3, colours.ink, 1);
  const lanes = Math.max(1, Math.min(MOST_LANES, seen.lanes));
  const below = top + 6 + program;
  const lane = (height - program - 12) / lanes;
  const thick = Math.max(1.2, lane - 1);
  const clip = (time) => Math.min(seen.end, Math.max(0, time));
  for (const one of seen.operations) {
    const y = below + (one.lane % lanes) * lane;
    const [posted, started, ended] = [one.posted, one.started, one.ended].map((time) => x(from + clip(time)));
    if (started > posted) { pencil.fillStyle = colours.queueing; pencil.fillRect(posted, y, started - posted, thick); }
    if (one.begun && ended > started) { pencil.fillStyle = colours.communicating; pencil.fillRect(started, y, Math.max(0.8, ended - started), thick); }
  }
  const hidden = seen.hidden == null ? "no communication" : `${percent(seen.hidden)} hidden`;
  words(pencil, `${percent(1 - seen.waiting)} computing`, right + 10, top + 11, colours.ink);
  if (height > 24) words(pencil, fitting(pencil, hidden, width - right - 12), right + 10, top + 25, colours.soft);
}

// Where stripes of a worker lie: those of a band's programs together, and below them whether anything was under way, so that
// colours can be told apart.
function stripes(index, count, head, height) {
  const band = Math.floor(index / BAND);
  const place = index % BAND;
  const here = Math.min(BAND, count - band * BAND);
  const program = Math.ceil(height * 0.55);
  const gap = height > 4 ? 1 : 0;
  const top = head + band * BAND * height;
  return {
    program: { y: top + place * program, height: program - gap },
    under: { y: top + here * program + place * (height - program), height: height - program - gap },
  };
}

function drawStripe(pencil, { rank, seen }, index, head, height, x, offset, count) {
  const at = stripes(index, count, head, height);
  const every = BAND * Math.max(1, Math.round(count / 16 / BAND));
  if (rank === selected) words(pencil, `${rank} ▸`, 44, at.program.y + 1, colours.accent, "right");
  else if (index % every === 0 && Math.abs(rank - (selected ?? -99)) > 4) words(pencil, `${rank}`, 34, at.program.y + 4, colours.soft, "right");
  if (!seen) return;
  const from = offset(seen);
  const fill = (spans, lane, colour) => {
    pencil.fillStyle = colour;
    for (const [begin, end] of spans) {
      const left = x(from + begin);
      pencil.fillRect(left, lane.y, Math.max(0.5, x(from + end) - left), lane.height);
    }
  };
  fill(seen.waits, at.program, colours.waiting);
  fill(seen.computing, at.program, colours.computing);
  fill(seen.under, at.under, colours.communicating);
}

// The row at a height of the drawing.
function rowAt(y) {
  const { head, height, named } = timeline.frame;
  const count = timeline.rows.length;
  if (named) return timeline.rows[Math.floor((y - head) / height)];
  const within = (lane) => y >= lane.y && y < lane.y + lane.height + 1;
  const first = Math.max(0, BAND * Math.floor((y - head) / (BAND * height)));
  for (let index = first; index < Math.min(count, first + BAND); index += 1) {
    const at = stripes(index, count, head, height);
    if (within(at.program) || within(at.under)) return timeline.rows[index];
  }
  return undefined;
}

function rowText({ rank, seen }) {
  if (!seen) return `Worker ${rank} did not show this step`;
  const longest = seen.ends.map((end, at) => end - (at ? seen.ends[at - 1] : 0));
  const parts = [
    `Worker ${rank} on ${hostOf(rank)}, step ${seen.step}: ${longest.map(microseconds).join(" and ")}`,
    `${percent(1 - seen.waiting)} computing, ${percent(seen.waiting)} waiting`,
    `${percent(seen.communicating)} communicating${seen.hidden == null ? "" : `, ${percent(seen.hidden)} of that behind computation`}`,
    `${rate(seen.upload)} out, ${rate(seen.download)} in`,
  ];
  if (seen.leftOut > 0) parts.push(`${seen.leftOut} short operations are not shown`);
  return parts.join("\n");
}

function timelineAt(event) {
  const frame = timeline.frame;
  if (!frame) return null;
  const box = timeline.canvas.getBoundingClientRect();
  const row = rowAt(event.clientY - box.top);
  if (!row) return null;
  const time = ((event.clientX - box.left - frame.left) / (frame.right - frame.left)) * frame.end;
  return { row, time: row.seen ? time - frame.offset(row.seen) : 0 };
}

function timelineText({ row, time }) {
  const { seen } = row;
  const lines = [rowText(row)];
  if (seen && time >= 0 && time <= seen.end) {
    const here = seen.operations.filter((one) => one.posted <= time && one.ended >= time).slice(0, 6);
    for (const one of here) {
      const queue = one.started - one.posted;
      const way = one.begun ? `${microseconds(one.ended - one.started)} under way${one.open ? " so far" : ""}` : "not begun";
      lines.push(`${one.name}, ${bytes(one.bytes)}: ${microseconds(Math.max(0, queue))} queueing, ${way}`);
    }
  }
  return lines.join("\n");
}

function listenToTimeline() {
  const canvas = timeline.canvas;
  canvas.addEventListener("mousemove", (event) => {
    const found = timelineAt(event);
    showTip(event, found && timelineText(found));
  });
  canvas.addEventListener("mouseleave", hideTip);
  canvas.addEventListener("click", (event) => {
    const found = timelineAt(event);
    if (found) { select(found.row.rank); timeline.readout.textContent = rowText(found.row).replaceAll("\n", " · "); }
  });
  canvas.addEventListener("keydown", (event) => {
    const down = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    const side = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (down && timeline.rows.length > 0) {
      const at = timeline.rows.findIndex((row) => row.rank === selected);
      const next = timeline.rows[Math.min(timeline.rows.length - 1, Math.max(0, at < 0 ? 0 : at + down))];
      selected = null;
      select(next.rank);
      timeline.readout.textContent = rowText(next).replaceAll("\n", " · ");
    } else if (side) browse(side);
    else return;
    event.preventDefault();
  });
  document.getElementById("timeline-before").addEventListener("click", () => browse(-1));
  document.getElementById("timeline-after").addEventListener("click", () => browse(1));
  document.getElementById("timeline-freeze").addEventListener("click", () => freeze(!timeline.frozen));
}

function freeze(frozen) {
  timeline.frozen = frozen;
  document.getElementById("timeline-freeze").setAttribute("aria-pressed", String(frozen));
  dirty.timeline = true;
}

// Earlier or later steps, of those that are still known.
function browse(direction) {
  const steps = seenSteps();
  const at = Math.max(0, steps.indexOf(timeline.step));
  timeline.step = steps[Math.min(steps.length - 1, Math.max(0, at - direction))] ?? null;
  freeze(true);
}
