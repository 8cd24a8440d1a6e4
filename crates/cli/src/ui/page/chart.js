// The job over time: throughput, loss and what was decided, on one axis.

const course = { canvas: document.getElementById("course"), readout: document.getElementById("course-readout"), range: 0, cursor: null, frame: null };

const MARGIN = { left: 56, right: 14, top: 16, bottom: 22 };

function courseSpan() {
  const end = model.ended != null || !model.job ? model.last : Math.max(model.last, Date.now() + model.ahead);
  const first = Math.min(model.points[0]?.t ?? model.last, model.decisions[0]?.t ?? model.last);
  const begin = course.range > 0 ? Math.max(first, end - 1000 * course.range) : first;
  return [begin, Math.max(end, begin + 5000)];
}

function drawCourse() {
  const { pencil, width, height } = prepared(course.canvas);
  const [begin, end] = courseSpan();
  const inner = { left: MARGIN.left, right: width - MARGIN.right };
  const x = (t) => inner.left + ((t - begin) / (end - begin)) * (inner.right - inner.left);
  const losses = model.points.some((point) => point.loss != null);
  const lanes = 34;
  const space = height - MARGIN.top - MARGIN.bottom - lanes;
  const upper = { top: MARGIN.top, bottom: MARGIN.top + (losses ? 0.56 * space : space) - 8 };
  const lower = { top: upper.bottom + 18, bottom: height - MARGIN.bottom - lanes };
  const lane = { top: height - MARGIN.bottom - lanes + 8, bottom: height - MARGIN.bottom };
  const shown = model.points.filter((point) => point.t >= begin - 5000);
  const samples = shown.some((point) => point.samples != null);

  const zero = model.began ?? begin;
  for (const at of ticks((begin - zero) / 1000, (end - zero) / 1000, Math.max(2, (inner.right - inner.left) / 110))) {
    const place = x(zero + 1000 * at);
    line(pencil, place, MARGIN.top, place, lane.bottom, colours.faint);
    words(pencil, span(at), place, height - 9, colours.soft, "center");
  }
  for (const mark of model.marks) {
    if (mark.t < begin) continue;
    const colour = { gone: colours.bad, joined: colours.good, left: colours.waiting, settings: colours.accent, job: colours.ink, note: colours.line }[mark.kind];
    line(pencil, x(mark.t), MARGIN.top, x(mark.t), lane.top, colour, 1, mark.kind === "settings" ? [3, 3] : mark.kind === "note" ? [1, 3] : []);
  }
  const speedOf = samples ? (point) => point.samples : (point) => point.speed;
  strip(pencil, shown, speedOf, upper, inner, x, colours.computing, samples ? "samples/s" : "steps/s", true);
  if (losses) strip(pencil, shown, (point) => point.loss, lower, inner, x, colours.person, "loss", false);
  if (shown.length === 0) {
    words(pencil, "Numbers come with the first steps of programs that say where a step begins.", width / 2, height / 2 - 20, colours.soft, "center");
  }
  drawDecisions(pencil, lane, inner, x, begin);
  if (course.cursor != null) {
    line(pencil, x(course.cursor), MARGIN.top, x(course.cursor), lane.bottom, colours.ink);
  }
  course.frame = { begin, end, inner, x };
}

function strip(pencil, points, of, box, inner, x, colour, label, zero) {
  const values = points.map(of).filter((value) => value != null);
  let least = zero ? 0 : Math.min(...values);
  let most = Math.max(...values);
  if (!(most > least)) { most = least + (Math.abs(least) || 1); }
  const pad = zero ? 0.08 * (most - least) : 0.1 * (most - least);
  most += pad;
  if (!zero) least -= pad;
  const y = (value) => box.bottom - ((value - least) / (most - least)) * (box.bottom - box.top);
  for (const at of ticks(least, most, Math.max(2, (box.bottom - box.top) / 34))) {
    line(pencil, inner.left, y(at), inner.right, y(at), colours.faint);
    words(pencil, short(at), inner.left - 6, y(at), colours.soft, "right");
  }
  line(pencil, inner.left, box.bottom, inner.right, box.bottom, colours.line);
  // One segment for each pixel at most: the mean of what falls on it, between the least and the greatest.
  pencil.save();
  pencil.beginPath();
  pencil.rect(inner.left, box.top - 4, inner.right - inner.left, box.bottom - box.top + 8);
  pencil.clip();
  const columns = new Map();
  for (const point of points) {
    const value = of(point);
    if (value == null) continue;
    const place = Math.round(x(point.t));
    const column = columns.get(place) ?? { sum: 0, count: 0, least: value, most: value };
    column.sum += value;
    column.count += 1;
    column.least = Math.min(column.least, value);
    column.most = Math.max(column.most, value);
    columns.set(place, column);
  }
  const places = [...columns.keys()].sort((one, other) => one - other);
  const middle = (place) => y(columns.get(place).sum / columns.get(place).count);
  pencil.strokeStyle = colour;
  pencil.globalAlpha = 0.35;
  pencil.beginPath();
  for (const place of places) {
    const column = columns.get(place);
    if (column.count > 1) { pencil.moveTo(place, y(column.least)); pencil.lineTo(place, y(column.most)); }
  }
  pencil.stroke();
  pencil.globalAlpha = 1;
  pencil.lineWidth = 1.6;
  pencil.lineJoin = "round";
  pencil.beginPath();
  places.forEach((place, at) => (at === 0 ? pencil.moveTo(place, middle(place)) : pencil.lineTo(place, middle(place))));
  pencil.stroke();
  if (zero && places.length > 1) {
    pencil.lineTo(places[places.length - 1], box.bottom);
    pencil.lineTo(places[0], box.bottom);
    pencil.globalAlpha = 0.08;
    pencil.fillStyle = colour;
    pencil.fill();
    pencil.globalAlpha = 1;
  }
  pencil.restore();
  words(pencil, label, inner.right - 2, box.top - 3, colour, "right");
}

const ACTION_COLOURS = { switch: "accent", try: "accent", confirm: "good", roll_back: "bad", disappoint: "bad", refused: "bad", ask: "person", change: "person" };

function drawDecisions(pencil, lane, inner, x, begin) {
  const middle = (lane.top + lane.bottom) / 2;
  line(pencil, inner.left, lane.top - 3, inner.right, lane.top - 3, colours.line);
  words(pencil, "decisions", inner.left - 6, middle, colours.soft, "right");
  const shown = model.decisions.filter((one) => one.t >= begin);
  // What is taken: by markers, and by labels that are written.
  const taken = shown.filter((one) => one.action !== "keep").map((one) => [x(one.t) - 6, x(one.t) + 6]);
  for (const one of shown) {
    const place = x(one.t);
    pencil.fillStyle = colours[ACTION_COLOURS[one.action] ?? "soft"];
    pencil.beginPath();
    if (one.action === "keep" || one.action === "void") pencil.arc(place, middle, 2, 0, 7);
    else if (one.action === "confirm") pencil.arc(place, middle, 4.5, 0, 7);
    else { pencil.moveTo(place - 5, middle - 5); pencil.lineTo(place + 5, middle); pencil.lineTo(place - 5, middle + 5); }
    pencil.fill();
  }
  for (const one of shown) {
    if (one.predicted == null || one.action === "keep") continue;
    const place = x(one.t);
    // Beside the marker, on a side where there is room; the list below has all of them.
    const expected = `${gain(one.predicted)}?`;
    const wide = pencil.measureText(expected).width;
    const sides = [[place + 8, place + 8 + wide, "left"], [place - 8 - wide, place - 8, "right"]];
    const free = sides.find(([from, to]) => from > inner.left && to < inner.right + MARGIN.right && taken.every(([begins, ends]) => to < begins || from > ends));
    if (!free) continue;
    const [from, to, align] = free;
    taken.push([from, to]);
    // Over the dots of those that changed nothing.
    pencil.fillStyle = colours.panel;
    pencil.fillRect(from, lane.top, to - from, lane.bottom - lane.top);
    const side = align === "left" ? from : to;
    words(pencil, expected, side, one.measured == null ? middle : middle + 6, colours.soft, align);
    if (one.measured != null) words(pencil, gain(one.measured), side, middle - 6, colours.ink, align);
  }
}

// What was at a moment, in words.
function courseAt(t) {
  const { x } = course.frame ?? {};
  if (!x) return "";
  let best = null;
  for (const point of model.points) {
    if (!best || Math.abs(point.t - t) < Math.abs(best.t - t)) best = point;
  }
  const parts = [];
  if (best) {
    parts.push(`${span((best.t - model.began) / 1000)}, step ${best.step}: ${short(best.speed)} steps/s`);
    if (best.samples != null) parts.push(`${short(best.samples)} samples/s`);
    if (best.loss != null) parts.push(`loss ${best.loss.toPrecision(4)}`);
    parts.push(`${percent(best.waiting)} waiting`, `${best.workers} workers`);
  }
  const near = (one) => Math.abs(x(one.t) - x(t)) < 7;
  const happened = [...model.decisions, ...model.marks].filter(near).slice(-4).map((one) => one.text);
  return [parts.join(", "), ...happened].filter(Boolean).join("\n");
}

function listenToCourse() {
  const canvas = course.canvas;
  const at = (event) => {
    const { begin, end, inner } = course.frame;
    const place = event.clientX - canvas.getBoundingClientRect().left;
    return begin + ((place - inner.left) / (inner.right - inner.left)) * (end - begin);
  };
  canvas.addEventListener("mousemove", (event) => {
    if (!course.frame) return;
    course.cursor = at(event);
    showTip(event, courseAt(course.cursor));
    dirty.course = true;
  });
  canvas.addEventListener("mouseleave", () => { course.cursor = null; hideTip(); dirty.course = true; });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") course.cursor = null;
    else if (step && course.frame) {
      const { begin, end } = course.frame;
      course.cursor = Math.min(end, Math.max(begin, (course.cursor ?? end) + (step * (end - begin)) / 60));
      course.readout.textContent = courseAt(course.cursor).replaceAll("\n", " · ");
      event.preventDefault();
    } else return;
    dirty.course = true;
  });
  document.querySelectorAll("[data-range]").forEach((button) => button.addEventListener("click", () => {
    course.range = Number(button.dataset.range);
    document.querySelectorAll("[data-range]").forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
    dirty.course = true;
  }));
}
