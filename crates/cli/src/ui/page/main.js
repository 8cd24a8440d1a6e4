// The page at work: ask the job what is new, and draw what that changes.

const token = new URLSearchParams(location.search).get("token") ?? "";

// Milliseconds between two questions, and how long an answer may take.
const INTERVAL = 400;
const PATIENCE = 5000;

// What is to be drawn again.
const dirty = {
  course: true, timeline: true, topology: true, members: true, decisions: true, head: true,
  all() { for (const name of ["course", "timeline", "topology", "members", "decisions", "head"]) this[name] = true; },
};

let after = 0;
let lost = false;
let timer = null;

function soon() {
  clearTimeout(timer);
  timer = setTimeout(ask, 50);
}

async function ask() {
  let wait = INTERVAL;
  try {
    const answer = await fetch(`/feed?after=${after}`, { headers: { Authorization: `Bearer ${token}` }, signal: AbortSignal.timeout(PATIENCE) });
    if (!answer.ok) throw new Error(await answer.text());
    const told = await answer.json();
    lost = false;
    model.hands = told.hands;
    model.ahead = told.now - Date.now();
    if (told.last < after) forget();
    after = told.last;
    const before = { ...model.version };
    told.records.forEach(hear);
    changed(before);
    if (told.more) wait = 0;
  } catch {
    lost = true;
    dirty.head = true;
  }
  clearTimeout(timer);
  timer = setTimeout(ask, wait);
}

// Another run answers at this address now.
function forget() {
  model.points.length = model.decisions.length = model.marks.length = 0;
  model.sightings.clear();
  Object.assign(model, { job: null, began: null, view: null, division: null, members: [], ended: null });
}

function changed(before) {
  const news = (name) => model.version[name] !== before[name];
  if (news("points") || news("view")) dirty.course = true;
  if (news("groups")) dirty.topology = true;
  if (news("sightings")) dirty.timeline = dirty.topology = dirty.members = true;
  if (news("members") || news("view")) dirty.members = dirty.topology = dirty.timeline = true;
  if (news("decisions") || news("job")) dirty.decisions = true;
  dirty.head = true;
}

function set(id, text) {
  const place = document.getElementById(id);
  if (place.textContent !== text) place.textContent = text;
}

function drawHead() {
  const point = model.points[model.points.length - 1];
  const over = model.ended != null;
  const state = document.getElementById("state");
  const running = !over && !lost && model.job;
  const words = over ? model.ended : lost ? "the job does not answer" : !model.job ? "connecting" : model.view ? "running" : "workers gather";
  set("state", words);
  state.className = `pill ${over ? "over" : lost ? "lost" : running ? "running" : ""}`;
  if (model.job) {
    set("job-name", model.job.name);
    set("job-program", model.note && running ? model.note : model.job.program);
    document.title = `${model.job.name} – Paceline`;
  }
  if (point) {
    set("tile-speed", point.samples == null ? short(point.speed) : short(point.samples));
    set("tile-speed-unit", point.samples == null ? "steps/s" : "samples/s");
    set("tile-loss", point.loss == null ? "–" : point.loss.toPrecision(3));
    set("tile-loss-unit", point.loss == null ? "the program says none" : "mean of all workers");
    set("tile-waiting", percent(point.waiting));
    set("tile-sent", rate(point.sent));
    set("tile-step", point.step.toLocaleString("en"));
  }
  if (model.began) {
    const now = over ? model.last : Math.max(model.last, Date.now() + model.ahead);
    set("tile-elapsed", `${point ? `${short(point.speed)}/s, ` : ""}after ${span((now - model.began) / 1000)}`);
  }
  if (model.view) {
    set("tile-workers", `${model.view.workers.length}`);
    set("tile-view", `view ${model.view.version}`);
    set("tile-settings", `${model.view.strategy}, ${bytes(model.view.partition)} / ${bytes(model.view.credit)}`);
  }
  const tuning = model.paused ? "tuning rests" : model.job?.tuning ? `tuned by ${model.job.tuning}` : "not tuned";
  set("tile-tuning", `partition / credit, ${tuning}`);
}

const DRAW = {
  head: () => { drawHead(); drawControls(); },
  course: drawCourse,
  timeline: drawTimeline,
  topology: drawTopology,
  members: drawMembers,
  decisions: drawDecisionList,
};

function frame() {
  for (const [name, draw] of Object.entries(DRAW)) {
    if (dirty[name]) {
      dirty[name] = false;
      draw();
    }
  }
  requestAnimationFrame(frame);
}

readColours();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); dirty.all(); });
new ResizeObserver(() => { dirty.course = dirty.timeline = dirty.topology = true; }).observe(document.querySelector("main"));
document.getElementById("decisions-kept").addEventListener("change", () => { dirty.decisions = true; });
// Time passes on the axis even if nothing happens.
setInterval(() => { if (model.ended == null) dirty.course = dirty.head = true; }, 500);
listenToCourse();
listenToTimeline();
listenToTopology();
listenToMembers();
listenToControls();
ask();
frame();
