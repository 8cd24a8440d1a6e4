// Writes the page of a job that never ran: many workers on hosts of eight, some slower than others, a ring of links, groups, decisions, a
// worker that is lost. `paceline ui FOLDER` shows it. For tests of the page at sizes that no test machine has.
//
//     node generate.mjs FOLDER WORKERS SECONDS [WARM]
//
// WARM seconds of it come at once, the rest as time goes by, with `paceline ui --play`.
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const [, , folder, count, length, warm] = process.argv;
const workers = Number(count);
const seconds = Number(length);
const before = Number(warm ?? 0);
const HOST = 8;
const STEP = 180_000; // microseconds
const LAYERS = 12;

// The same numbers every time.
let state = 12345;
function random() {
  state = (1103515245 * state + 12345) % 2147483648;
  return state / 2147483648;
}

const begin = Date.now() - 1000 * seconds;
const lines = [];
// What came before is told at once.
const say = (at, record) => lines.push(JSON.stringify({ t: begin + Math.round(Math.max(0, at - 1000 * before)), ...record }));
const members = [...Array(workers).keys()].map((id) => ({ id, host: `node-${String(Math.floor(id / HOST)).padStart(2, "0")}`, rack: Math.floor(id / HOST / 8) }));

say(0, { kind: "job", format: 1, name: "simulated", program: `a job of ${workers} workers that never ran`, limits: null, tuning: "replay" });
const view = (at, version, since, partition) => say(at, {
  kind: "view", version, since, strategy: "shuffle", partition, credit: 4 << 20,
  workers: members.map(({ id, host, rack }) => ({ id, host, rack })),
  links: [...new Map(members.map(({ host, rack }) => [host, rack]))].map(([host, rack]) => ({ host, rack, rate: 1.25e9, latency: 40e-6 })),
  uplinks: [...new Set(members.map(({ rack }) => rack))].map((rack) => ({ rate: 2.5e9, latency: 90e-6, contended: rack === 1 })),
});
view(0, 1, 0, 1 << 20);
say(0, { kind: "members", members: members.map(({ id, host }) => ({ id, rank: id, host, process: 4000 + id, standing: "working", step: 0 })) });

// Each rack by itself, and one of each in a group between racks.
function groups(step) {
  const away = (rank) => rank % (8 * HOST) === step % (8 * HOST);
  const racks = [...new Set(members.map(({ rack }) => rack))].map((rack) => members.filter((one) => one.rack === rack && !away(one.id)));
  return [...racks, members.filter(({ id }) => away(id))].map((list) => list.map(({ id }) => id)).filter((list) => list.length > 0);
}

function sighting(rank, step, at, slow) {
  const host = Math.floor(rank / HOST);
  const pace = host === 3 && slow ? 1.5 : 1 + 0.05 * random();
  const operations = [];
  const waits = [];
  const ends = [];
  let now = 0;
  for (let number = 0; number < 2; number += 1) {
    const from = number * STEP;
    waits.push([from, Math.round(STEP * 0.08 * pace)]);
    for (let layer = 0; layer < LAYERS; layer += 1) {
      const posted = from + Math.round(STEP * (0.45 + 0.045 * layer));
      const started = posted + Math.round(1500 * layer * random());
      operations.push([`layer ${LAYERS - layer}`, 1 << (16 + (layer % 6)), posted, started, Math.min(2 * STEP, started + Math.round(STEP * (0.06 + 0.12 * random()) * pace))]);
    }
    waits.push([from + Math.round(STEP * (1.02 - 0.12 * pace)), Math.round(STEP * 0.1 * pace)]);
    now += STEP;
    ends.push(now);
  }
  const out = 9e7 * (slow && (host === 3) ? 0.4 : 1) * (0.9 + 0.2 * random());
  return {
    kind: "seen", id: rank, rank, view: 1, step, at: 1000 * begin + Math.round(1000 * (at - 1000 * before) + 2000 * random()), ends, speed: 1e6 / STEP / (slow ? 1.4 : 1),
    waits, operations, left_out: 0, sent: workers > HOST ? [[(rank + 1) % workers, out], [(rank + HOST) % workers, out / 9]] : [[(rank + 1) % workers, out]],
    upload: out * 1.11, download: out * 1.1, loss: 0.3 + 2.2 * Math.exp(-step / 220) + 0.05 * random(), samples: 32e6 / STEP,
  };
}

// As often as real workers would: a quarter of a second, and 10 ms for each worker.
const every = Math.max(250, 10 * workers);
let step = 0;
let told = 0;
for (let at = 0; at < 1000 * (seconds + before); at += every) {
  step = Math.floor((at * 1000) / STEP / 2) * 2;
  const phase = at / (1000 * (seconds + before));
  const slow = phase > 0.4 && phase < 0.7;
  for (let rank = workers - 1; rank >= 0; rank -= 1) say(at + (every * (workers - 1 - rank)) / workers / 2, sighting(rank, step, at, slow));
  const speed = (1e6 / STEP / (slow ? 1.4 : 1)) * (0.97 + 0.06 * random());
  say(at + every / 2, { kind: "groups", step, groups: groups(step), parts: 4 });
  say(at + every / 2, { kind: "point", step, speed, samples: 32 * workers * speed, loss: 0.3 + 2.2 * Math.exp(-step / 220) + 0.04 * random(), waiting: slow ? 0.34 : 0.19, sent: 9e7 * workers, workers });
  const decisions = [
    [0.1, "keep", "kept shuffle 1MiB/4MiB: nothing better is known (the job begins)", null, null],
    [0.45, "switch", "from shuffle 1MiB/4MiB to shuffle 256KiB/1MiB, expecting +21.0 % (slowest wire fell by 58 %)", 1.21, null],
    [0.55, "confirm", "shuffle 256KiB/1MiB brought +18.4 %, +21.0 % expected (measured)", 1.21, 1.184],
    [0.8, "roll_back", "double_tree 1MiB/4MiB brought -3.1 %; back to shuffle 256KiB/1MiB (measured)", 1.06, 0.969],
  ];
  while (told < decisions.length && phase >= decisions[told][0]) {
    const [, action, text, predicted, measured] = decisions[told];
    say(at + every / 2, { kind: "decision", by: "replay", action, step, text: `step ${step}: ${text}`, predicted, measured });
    if (action === "switch") view(at + every / 2, 2, step + 3, 256 << 10);
    told += 1;
  }
}
say(1000 * (seconds + before) - 1, { kind: "gone", id: 7, rank: 7, finished: false, text: "its connection closed" });

mkdirSync(folder, { recursive: true });
const sorted = lines.map((text) => [JSON.parse(text).t, text]).sort((one, other) => one[0] - other[0]).map(([, text]) => text);
writeFileSync(join(folder, "page.jsonl"), `${sorted.join("\n")}\n`);
