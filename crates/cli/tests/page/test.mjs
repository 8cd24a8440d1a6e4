// The page in a real browser: a live job, a resize by click that really resizes, settings, tuning, a trace, groups, a token that is
// wrong, 256 workers. Where there is a Prometheus, it reads the metrics, and answers what the dashboard asks.
// Started by scripts/test-page, which says where everything is:
//
//     PACELINE=… STEPS=… CHROMIUM=… ARTEFACTS=… node test.mjs
//
// Needs playwright-core beside it or in NODE_PATH. Every wait is bounded; whatever is started is ended.
import { spawn, spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const { chromium } = createRequire(join(process.env.MODULES ?? process.cwd(), "x.js"))("playwright-core");
const { PACELINE, STEPS, CHROMIUM, ARTEFACTS, PROMETHEUS } = process.env;
const PATIENCE = 30_000;
const here = dirname(fileURLToPath(import.meta.url));
const scratch = mkdtempSync(join(tmpdir(), "paceline-page-"));
const started = [];
mkdirSync(ARTEFACTS, { recursive: true });

function check(so, what) {
  if (!so) throw new Error(what);
  console.log(`  ok: ${what}`);
}

// A command of ours, and the link that it prints.
async function served(...words) {
  const environment = { ...process.env };
  delete environment.PACELINE_UI_TOKEN;
  const child = spawn(PACELINE, words, { env: environment, stdio: ["ignore", "pipe", "pipe"] });
  started.push(child);
  child.ended = new Promise((resolve) => child.on("exit", resolve));
  let said = "";
  const link = await new Promise((resolve, reject) => {
    const late = setTimeout(() => reject(new Error(`no link: ${said}`)), PATIENCE);
    const hear = (text) => {
      said += text;
      const found = said.match(/http:\/\/\S+\/\?token=\w+/);
      if (found) { clearTimeout(late); resolve(found[0]); }
    };
    child.stdout.on("data", hear);
    child.stderr.on("data", hear);
    child.on("exit", () => { clearTimeout(late); reject(new Error(`it ended: ${said}`)); });
  });
  return { child, link };
}

async function end({ child }) {
  child.kill("SIGTERM");
  await Promise.race([child.ended, new Promise((resolve) => setTimeout(resolve, 10_000))]);
  check(child.exitCode != null || child.signalCode != null, "the server ends when it is asked to");
}

// A page whose errors, and requests to others, are ours.
async function opened(browser, link, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1360, height: 900 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  page.problems = [];
  page.on("pageerror", (error) => page.problems.push(String(error)));
  page.on("console", (message) => { if (message.type() === "error") page.problems.push(message.text()); });
  page.on("request", (request) => {
    if (!request.url().startsWith(new URL(link).origin) && !request.url().startsWith("data:")) page.problems.push(`it asks ${request.url()}`);
  });
  const answer = await page.goto(link);
  check(answer.status() === 200, "the page comes with the token");
  return page;
}

const text = (page, id) => page.locator(`#${id}`).textContent();
const until = (page, what, test, argument) => page.waitForFunction(test, argument, { timeout: PATIENCE }).then(() => check(true, what));

async function liveJob(browser) {
  console.log("a live job");
  const job = await served("run", "-n", "3", "--elastic", "--max", "5", "--ui", "--", STEPS, "100000");
  const page = await opened(browser, job.link);
  await until(page, "steps are made and shown", () => Number(document.getElementById("tile-step").textContent.replace(/\D/g, "")) > 10);
  await until(page, "three workers are listed", () => document.querySelectorAll("#members tbody tr").length === 3);
  check((await text(page, "tile-loss")) !== "–", "the loss is shown");
  check(await page.isHidden("#topology-groups"), "where the strategy has no groups, none are shown");
  await until(page, "a step of all workers is drawn", () => /Last steps: \d+/.test(document.getElementById("timeline-title").textContent));
  const coloured = await page.evaluate(() => {
    const canvas = document.getElementById("timeline");
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const seen = new Set();
    for (let at = 0; at < data.length; at += 4) if (data[at + 3] > 0) seen.add((data[at] << 16) | (data[at + 1] << 8) | data[at + 2]);
    return seen.size;
  });
  check(coloured > 4, "computing, waiting and communicating have their colours");

  console.log("tokens");
  const origin = new URL(job.link).origin;
  const status = async (path, options) => (await fetch(`${origin}${path}`, options)).status;
  for (const path of ["/", "/?token=wrong", "/feed", "/feed?token=wrong", "/metrics", "/trace"]) check((await status(path)) === 403, `${path} is refused`);
  const token = new URL(job.link).searchParams.get("token");
  check((await status(`/resize?token=${token}`, { method: "POST", body: '{"workers":2}' })) === 403, "a link alone changes nothing");
  const metrics = await (await fetch(`${origin}/metrics`, { headers: { Authorization: `Bearer ${token}` } })).text();
  check(/^paceline_workers 3$/m.test(metrics) && /^paceline_steps_per_second [\d.]+$/m.test(metrics), "metrics are served");
  const trace = await (await fetch(`${origin}/trace?token=${token}`)).json();
  check(trace.traceEvents.some((event) => event.name?.includes("communicating")), "the trace has what was under way");

  console.log("controls");
  await page.fill("#resize-workers", "4");
  await page.click("#resize-form button");
  await until(page, "a click makes it four workers", () => document.getElementById("tile-workers").textContent === "4" && document.querySelectorAll("#members tbody tr").length === 4);
  await page.focus("#resize-workers");
  await page.fill("#resize-workers", "2");
  await page.keyboard.press("Enter");
  await until(page, "a key makes it two", () => document.getElementById("tile-workers").textContent === "2" && document.querySelectorAll("#members tbody tr").length === 2);
  await page.selectOption("#set-partition", "64KiB");
  await page.selectOption("#set-credit", "256KiB");
  await page.click("#settings-form button");
  await until(page, "settings change", () => document.getElementById("tile-settings").textContent.includes("64 KiB / 256 KiB"));
  await page.fill("#resize-workers", "5");
  await page.evaluate(() => { document.getElementById("resize-workers").value = "99"; document.getElementById("resize-form").noValidate = true; });
  await page.click("#resize-form button");
  await until(page, "what cannot be is refused in words", () => /99 workers are not within the limits/.test(document.getElementById("controls-said").textContent));
  check((await page.locator("#decisions tbody tr").count()) >= 3, "what was asked for is among the decisions");

  console.log("keyboard");
  const reached = new Set();
  await page.focus("body");
  for (let press = 0; press < 60; press += 1) {
    await page.keyboard.press("Tab");
    reached.add(await page.evaluate(() => document.activeElement.id || document.activeElement.dataset?.range || document.activeElement.className));
  }
  for (const id of ["course", "resize-workers", "set-partition", "download-trace", "timeline", "topology", "timeline-freeze", "decisions-kept"]) check(reached.has(id), `Tab reaches ${id}`);
  await page.focus("#timeline");
  await page.keyboard.press("ArrowDown");
  check((await text(page, "timeline-readout")).startsWith("Worker 0"), "arrows choose a worker");

  await page.screenshot({ path: join(ARTEFACTS, "live.png"), fullPage: true });
  check(page.problems.filter((problem) => !/409|Conflict/.test(problem)).length === 0, `nothing went wrong in the page ${page.problems.join("; ")}`);
  await end(job);
  await until(page, "the page says that the job is over", () => /ended|finished|does not answer/.test(document.getElementById("state").textContent));
}

async function tunedJob(browser) {
  console.log("a job that is tuned");
  const job = await served("run", "-n", "2", "--tune", "replay", "--ui", "--", STEPS, "100000");
  const page = await opened(browser, job.link, { viewport: { width: 480, height: 800 } });
  await until(page, "steps are made and shown", () => Number(document.getElementById("tile-step").textContent.replace(/\D/g, "")) > 10);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth);
  check(wide <= 480, `nothing is wider than a small window (${wide})`);
  check(await page.isDisabled("#resize-workers"), "a job that is not elastic cannot be resized");
  const origin = new URL(job.link).origin;
  const token = new URL(job.link).searchParams.get("token");
  const metrics = async () => (await fetch(`${origin}/metrics`, { headers: { Authorization: `Bearer ${token}` } })).text();
  const prometheus = PROMETHEUS ? await scraping(new URL(job.link).host, token) : null;

  await page.selectOption("#set-partition", "256KiB");
  await page.selectOption("#set-credit", "1024KiB");
  await page.focus("#settings-form button");
  await page.keyboard.press("Enter");
  await until(page, "settings change by a key", () => document.getElementById("tile-settings").textContent.includes("256 KiB / 1 MiB"));
  const now = await metrics();
  check(/^paceline_partition_bytes 262144$/m.test(now) && /^paceline_credit_bytes 1048576$/m.test(now), "they are those of the view in force");
  let view = null;
  for (let feed = { last: 0, more: true }; feed.more;) {
    feed = await (await fetch(`${origin}/feed?token=${token}&after=${feed.last}`)).json();
    view = feed.records.findLast((record) => record.kind === "view") ?? view;
  }
  await until(page, "steps are made under them", (step) => Number(document.getElementById("tile-step").textContent.replace(/\D/g, "")) > step, view.since);

  // While the change is as young as the dashboard's notes of changes want it.
  if (prometheus) await dashboard(prometheus);

  const paused = async (so) => new RegExp(`^paceline_tuning_paused ${so}$`, "m").test(await metrics());
  check(await paused(0), "the tuner is at work");
  await page.click("#pause-tuning");
  await until(page, "a click lets it rest", () => document.getElementById("pause-tuning").textContent === "Resume tuning");
  check((await paused(1)) && (await page.getAttribute("#pause-tuning", "aria-pressed")) === "true", "so the job says, too");
  await page.click("#pause-tuning");
  await until(page, "another lets it go on", () => document.getElementById("pause-tuning").textContent === "Pause tuning");
  check(await paused(0), "so the job says, too");

  const [download] = await Promise.all([page.waitForEvent("download"), page.click("#download-trace")]);
  const trace = JSON.parse(readFileSync(await download.path(), "utf8"));
  check(download.suggestedFilename() === "paceline-trace.json" && trace.traceEvents.some((event) => event.name?.startsWith("step ")), "a click downloads the trace");
  await page.screenshot({ path: join(ARTEFACTS, "small.png"), fullPage: true });
  check(page.problems.length === 0, `nothing went wrong in the page ${page.problems.join("; ")}`);
  await end(job);
  await page.context().close();
}

async function groupsOfAStep(browser) {
  console.log("a job whose strategy has groups");
  const job = await served("run", "-n", "4", "--strategy", "shuffle", "--ui", "--", STEPS, "100000");
  const page = await opened(browser, job.link);
  await until(page, "they are said in words", () => /^Groups of step \d+, for what is mixed: /.test(document.getElementById("topology-groups").textContent));
  // Four on a host are a square: its rows and its columns by turns.
  const [, step, shown] = (await text(page, "topology-groups")).match(/step (\d+), for what is mixed: (.*)$/);
  check(shown === (step % 2 === 0 ? "0 1 | 2 3" : "0 2 | 1 3"), `they are those of step ${step}: ${shown}`);
  await page.focus("#topology");
  await page.keyboard.press("ArrowDown");
  check(/; group 1 in step \d+: 0 [12]$/.test(await text(page, "topology-readout")), "and told of the worker that is chosen");
  await page.screenshot({ path: join(ARTEFACTS, "groups.png"), fullPage: true });
  check(page.problems.length === 0, `nothing went wrong in the page ${page.problems.join("; ")}`);
  await end(job);
  await page.context().close();
}

// A real Prometheus, configured as docs/page.md says, that reads the job's metrics; where it answers.
async function scraping(target, token) {
  const config = join(scratch, "prometheus.yml");
  const guide = readFileSync(join(here, "../../../../docs/page.md"), "utf8").match(/```yaml\n([^]*?)```/)[1];
  const settings = guide.replace("THE-TOKEN", token).replace("127.0.0.1:8080", target);
  writeFileSync(config, `global: { scrape_interval: 1s }\n${settings}`);
  // It does not say which port it has if it chooses one itself: one that was free a moment ago.
  const port = await new Promise((resolve) => {
    const server = createServer().listen(0, "127.0.0.1", () => { const { port } = server.address(); server.close(() => resolve(port)); });
  });
  const words = [`--config.file=${config}`, `--storage.tsdb.path=${join(scratch, "series")}`, `--web.listen-address=127.0.0.1:${port}`];
  const child = spawn(PROMETHEUS, words, { stdio: "ignore" });
  started.push(child);
  child.ended = new Promise((resolve) => child.on("exit", resolve));
  const query = async (expression) => {
    const answer = await fetch(`http://127.0.0.1:${port}/api/v1/query?query=${encodeURIComponent(expression)}`).catch(() => null);
    // While it starts it says in plain words that it is not ready.
    return answer?.ok ? (await answer.json()) : { status: "silent" };
  };
  await eventually("Prometheus reads the metrics", async () => (await query("paceline_view_version")).data?.result.length > 0);
  return query;
}

// Everything that the dashboard asks for has an answer.
async function dashboard(query) {
  const { panels, annotations } = JSON.parse(readFileSync(join(here, "../../../../docs/grafana.json"), "utf8"));
  const asked = [...annotations.list, ...panels.flatMap((panel) => panel.targets)].map((one) => one.expr);
  for (const expression of new Set(asked)) {
    await eventually(`${expression} has an answer`, async () => (await query(expression)).data?.result.length > 0);
  }
  await eventually("a first decision counts", async () => (await query('increase(paceline_decisions_total{action="ask"}[5m])')).data?.result[0]?.value[1] > 0);
}

async function eventually(what, test) {
  const deadline = Date.now() + PATIENCE;
  while (!(await test())) {
    if (Date.now() > deadline) throw new Error(`not: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  check(true, what);
}

async function manyWorkers(browser) {
  console.log("256 workers, simulated");
  const folder = join(scratch, "many");
  spawnSync(process.execPath, [join(here, "generate.mjs"), folder, "256", "40", "40"], { stdio: "inherit" });
  const shown = await served("ui", folder, "--play");
  for (const colorScheme of ["light", "dark"]) {
    const page = await opened(browser, shown.link, { colorScheme });
    await until(page, "all workers are there", () => document.querySelectorAll("#members .cell").length === 256);
    await until(page, "their steps are drawn", () => /Last steps: \d+/.test(document.getElementById("timeline-title").textContent));
    const before = await text(page, "tile-step");
    // What a person would do meanwhile: scroll, and point at things.
    const counting = page.evaluate(() => new Promise((resolve) => {
      let frames = 0;
      const begin = performance.now();
      const count = () => {
        frames += 1;
        const passed = performance.now() - begin;
        window.scrollTo(0, 300 + 300 * Math.sin(passed / 400));
        if (passed < 6000) requestAnimationFrame(count);
        else resolve((1000 * frames) / passed);
      };
      requestAnimationFrame(count);
    }));
    for (let at = 0; at < 20; at += 1) { await page.mouse.move(300 + 20 * at, 400 + 8 * at); await page.waitForTimeout(150); }
    const perSecond = await counting;
    check((await text(page, "tile-step")) !== before, "the job goes on meanwhile");
    check(perSecond > 30, `${colorScheme}: ${perSecond.toFixed(0)} frames a second, more than 30`);
    await page.evaluate(() => window.scrollTo(0, 0));
    await page.hover("#timeline", { position: { x: 400, y: 100 } });
    check((await text(page, "tip")).startsWith("Worker "), "the pointer tells which worker it is at");
    await page.screenshot({ path: join(ARTEFACTS, `256-${colorScheme}.png`), fullPage: true });
    await page.hover("#topology", { position: { x: 300, y: 200 } });
    check(/% of node-\d+'s wire is used/.test(await text(page, "tip")), "where a wire's rate is known, its use is told");
    check(/group \d in step \d+: /.test(await text(page, "tip")), "and the group that a worker is in");
    const places = await page.evaluate(() => document.getElementById("topology-tree").textContent);
    check(/rack 1: uplink .*, 90 µs, 4\.0:1, contended/.test(places) && /node-00: .*, 40 µs/.test(places), `racks and hosts are a tree with marks: ${places.slice(0, 200)}`);
    check(/^Where hosts sit: \d+ racks, \d+ hosts, 1 contended link$/.test(await text(page, "topology-places-note")), "which is told in short");
    check(/^Groups of step \d+.*: 0–\d/.test(await text(page, "topology-groups")), "groups of many are listed in short");
    await page.focus("#members .cell[tabindex='0']");
    await page.keyboard.press("ArrowRight");
    check((await text(page, "members-readout")).startsWith("Worker 1 "), "arrows go from worker to worker");
    check(page.problems.length === 0, `nothing went wrong in the page ${page.problems.join("; ")}`);
    await page.context().close();
  }
  await end(shown);
}

let failed = null;
const browser = await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
try {
  await liveJob(browser);
  await tunedJob(browser);
  await groupsOfAStep(browser);
  await manyWorkers(browser);
} catch (error) {
  failed = error;
} finally {
  await browser.close();
  for (const child of started) if (child.exitCode == null && child.signalCode == null) { child.kill("SIGTERM"); await child.ended; }
  rmSync(scratch, { recursive: true, force: true });
}
if (failed) { console.error(failed); process.exit(1); }
console.log(`all is well; screenshots are in ${ARTEFACTS}`);
