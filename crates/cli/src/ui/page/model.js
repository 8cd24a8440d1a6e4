// What the page knows of the job: a fold over the records that it is told. Draws nothing and asks nobody.

// Points and sightings that are kept. The server keeps no more either.
const MOST_POINTS = 40000;
const SIGHTINGS = 6;

const model = {
  job: null,
  view: null,
  members: [],
  points: [],
  decisions: [],
  // Moments worth a line through the charts.
  marks: [],
  // Who averages with whom, in which step; null where all do.
  division: null,
  // By rank, oldest first.
  sightings: new Map(),
  paused: false,
  ended: null,
  note: null,
  hands: false,
  // What the server's clock is ahead of ours.
  ahead: 0,
  began: null,
  last: 0,
  // Counts what is new of each kind, so that only that is drawn again.
  version: { points: 0, decisions: 0, members: 0, sightings: 0, groups: 0, view: 0, job: 0 },
};

function hear(record) {
  const version = model.version;
  model.last = Math.max(model.last, record.t);
  switch (record.kind) {
    case "job":
      if (model.points.length > 0) model.marks.push({ t: record.t, kind: "job", text: `another job begins: ${record.program}` });
      model.began ??= record.t;
      Object.assign(model, { job: record, view: null, division: null, members: [], ended: null, paused: false });
      model.sightings.clear();
      version.job += 1;
      version.members += 1;
      break;
    case "view":
      hearView(record);
      break;
    case "members":
      model.members = record.members;
      version.members += 1;
      break;
    case "gone":
      if (!record.finished) {
        model.marks.push({ t: record.t, kind: "gone", text: `worker ${record.rank ?? "?"} is gone: ${record.text}` });
      }
      version.members += 1;
      version.points += 1;
      break;
    case "point":
      model.points.push(record);
      if (model.points.length > MOST_POINTS) model.points.splice(0, model.points.length - MOST_POINTS);
      version.points += 1;
      break;
    case "seen":
      hearSighting(record);
      break;
    case "groups":
      model.division = { step: record.step, groups: record.groups, parts: record.parts, of: new Map(record.groups.flatMap((ranks, at) => ranks.map((rank) => [rank, at]))) };
      version.groups += 1;
      break;
    case "decision":
      model.decisions.push(record);
      version.decisions += 1;
      version.points += 1;
      break;
    case "tuning":
      model.paused = record.paused;
      version.job += 1;
      break;
    case "note":
      model.note = record.text;
      model.marks.push({ t: record.t, kind: "note", text: record.text });
      version.points += 1;
      break;
    case "end":
      model.ended = record.text;
      version.job += 1;
      break;
  }
}

function hearView(view) {
  const before = model.view;
  model.view = view;
  // Another strategy may have none; the next that are told are of this view.
  model.division = null;
  if (before) {
    const had = new Set(before.workers.map((worker) => worker.id));
    const has = new Set(view.workers.map((worker) => worker.id));
    const came = view.workers.filter((worker) => !had.has(worker.id)).length;
    const left = before.workers.filter((worker) => !has.has(worker.id)).length;
    if (came || left) {
      const words = [came && `${came} joined`, left && `${left} left`].filter(Boolean).join(", ");
      model.marks.push({ t: view.t, kind: came ? "joined" : "left", text: `${words}: ${view.workers.length} workers from step ${view.since} on` });
      model.sightings.clear();
      model.version.sightings += 1;
    }
    const told = settingsText(view);
    if (told !== settingsText(before)) {
      model.marks.push({ t: view.t, kind: "settings", text: `${told} from step ${view.since} on` });
    }
  }
  model.version.view += 1;
  model.version.members += 1;
  model.version.points += 1;
}

function hearSighting(seen) {
  const list = model.sightings.get(seen.rank) ?? [];
  // Of another worker that had this rank before.
  const mine = list.filter((other) => other.id === seen.id);
  mine.push(digest(seen));
  model.sightings.set(seen.rank, mine.slice(-SIGHTINGS));
  model.version.sightings += 1;
}

// What is drawn of a sighting, worked out once.
function digest(seen) {
  const end = seen.ends[seen.ends.length - 1];
  const clip = (time) => Math.min(end, Math.max(0, time));
  const waits = merged(seen.waits.map(([from, length]) => [clip(from), clip(from + length)]));
  const operations = seen.operations.map(([name, size, posted, started, ended]) => ({
    name, bytes: size, posted, started: started ?? ended ?? end, ended: ended ?? end, open: ended == null, begun: started != null,
  }));
  const under = merged(operations.filter((one) => one.begun).map((one) => [clip(one.started), clip(one.ended)]));
  const computing = complement(waits, end);
  return {
    id: seen.id, rank: seen.rank, step: seen.step, at: seen.at, ends: seen.ends, end, waits, computing, under,
    lanes: packed(operations), operations, sent: seen.sent, upload: seen.upload, download: seen.download,
    speed: seen.speed, leftOut: seen.left_out ?? 0,
    waiting: end > 0 ? total(waits) / end : 0,
    communicating: end > 0 ? total(under) / end : 0,
    hidden: total(under) > 0 ? total(common(under, computing)) / total(under) : null,
  };
}

function merged(spans) {
  const sorted = spans.filter(([from, to]) => to > from).sort((one, other) => one[0] - other[0]);
  const result = [];
  for (const [from, to] of sorted) {
    const last = result[result.length - 1];
    if (last && from <= last[1]) last[1] = Math.max(last[1], to);
    else result.push([from, to]);
  }
  return result;
}

function complement(spans, end) {
  const result = [];
  let at = 0;
  for (const [from, to] of spans) {
    if (from > at) result.push([at, from]);
    at = Math.max(at, to);
  }
  if (end > at) result.push([at, end]);
  return result;
}

function common(some, others) {
  const result = [];
  for (let i = 0, j = 0; i < some.length && j < others.length; ) {
    const from = Math.max(some[i][0], others[j][0]);
    const to = Math.min(some[i][1], others[j][1]);
    if (to > from) result.push([from, to]);
    if (some[i][1] < others[j][1]) i += 1; else j += 1;
  }
  return result;
}

function total(spans) {
  return spans.reduce((sum, [from, to]) => sum + to - from, 0);
}

// Operations that overlap get lanes of their own.
function packed(operations) {
  const free = [];
  const sorted = [...operations].sort((one, other) => one.posted - other.posted);
  for (const one of sorted) {
    let lane = free.findIndex((until) => until <= one.posted);
    if (lane < 0) lane = free.length;
    free[lane] = one.ended;
    one.lane = lane;
  }
  return free.length;
}

function latest(rank) {
  const list = model.sightings.get(rank);
  return list && list[list.length - 1];
}

function settingsText(view) {
  return `${view.strategy}, ${bytes(view.partition)} pieces, ${view.credit == null ? "any number" : bytes(view.credit)} in flight`;
}

function hostOf(rank) {
  return model.view?.workers[rank]?.host ?? "";
}

// Ranks by host, hosts in the order in which they first appear; racks where they are known.
function groups() {
  const found = new Map();
  (model.view?.workers ?? []).forEach((worker, rank) => {
    if (!found.has(worker.host)) found.set(worker.host, { host: worker.host, rack: worker.rack ?? null, ranks: [] });
    found.get(worker.host).ranks.push(rank);
  });
  return [...found.values()].sort((one, other) => (one.rack ?? 0) - (other.rack ?? 0));
}

// What of a host's wire its workers use to send to other hosts, where it is known what that carries.
function wireUse(host) {
  const wire = model.view?.links?.find((link) => link.host === host);
  if (!wire || !(wire.rate > 0)) return null;
  let sent = 0;
  model.view.workers.forEach((worker, rank) => {
    if (worker.host !== host) return;
    for (const [to, perSecond] of latest(rank)?.sent ?? []) if (hostOf(to) !== host) sent += perSecond;
  });
  return sent / wire.rate;
}

// What a worker showed of a step.
function sightingOf(rank, step) {
  return model.sightings.get(rank)?.findLast((seen) => seen.step <= step && step < seen.step + seen.ends.length);
}

// The steps that most workers have shown, newest first.
function seenSteps() {
  const counts = new Map();
  for (const list of model.sightings.values()) {
    for (const seen of list) {
      for (let at = 0; at < seen.ends.length; at += 1) counts.set(seen.step + at, (counts.get(seen.step + at) ?? 0) + 1);
    }
  }
  const most = 0.9 * model.sightings.size;
  return [...counts].filter(([, count]) => count >= most).map(([step]) => step).sort((one, other) => other - one);
}
