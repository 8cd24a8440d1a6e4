// What may be changed: workers, settings, tuning. The server decides whether it can be; the page only asks.

const CREDITS = [64, 256, 1024, 4096, 16384, 65536, null];
const PARTITIONS = [64, 256, 1024, 4096, 16384, 65536];

const controls = { said: document.getElementById("controls-said"), touched: new Set() };

async function post(path, body) {
  controls.said.textContent = "asking …";
  try {
    const answer = await fetch(path, { method: "POST", headers: { Authorization: `Bearer ${token}`, "Content-Type": "application/json" }, body: JSON.stringify(body) });
    const text = await answer.text();
    controls.said.textContent = answer.ok ? JSON.parse(text).said : text.trim();
    if (answer.ok) { controls.touched.clear(); soon(); }
  } catch {
    controls.said.textContent = "the job does not answer";
  }
}

function fillChoices(select, sizes, current) {
  const known = sizes.includes(current) ? sizes : [...sizes, current].sort((one, other) => (one ?? Infinity) - (other ?? Infinity));
  const wanted = known.join();
  if (select.dataset.sizes !== wanted) {
    select.dataset.sizes = wanted;
    select.replaceChildren(...known.map((size) => {
      const option = element("option", null, size == null ? "unlimited" : bytes(size * 1024));
      option.value = size == null ? "unlimited" : `${size}KiB`;
      return option;
    }));
  }
  if (!controls.touched.has(select.id)) select.value = current == null ? "unlimited" : `${current}KiB`;
}

function drawControls() {
  const running = model.hands && model.ended == null && model.view != null;
  const elastic = running && model.job?.limits != null;
  const workers = document.getElementById("resize-workers");
  const resize = document.querySelectorAll("#resize-form input, #resize-form button");
  resize.forEach((one) => { one.disabled = !elastic; });
  document.querySelectorAll("#settings-form select, #settings-form button").forEach((one) => { one.disabled = !running; });
  const hint = document.getElementById("resize-hint");
  if (elastic) {
    const [least, most] = model.job.limits;
    Object.assign(workers, { min: least, max: most });
    hint.textContent = `From ${least} to ${most}. Those that are too many finish their step first.`;
  } else if (model.ended != null || !model.job) hint.textContent = "";
  else hint.textContent = model.hands ? "This job has the workers it began with; --elastic lets them come and go." : "This job directs itself, or is over.";
  if (model.view && !controls.touched.has("resize-workers")) workers.value = model.view.workers.length;
  if (model.view) {
    fillChoices(document.getElementById("set-partition"), PARTITIONS, model.view.partition / 1024);
    fillChoices(document.getElementById("set-credit"), CREDITS, model.view.credit == null ? null : model.view.credit / 1024);
  }
  const pause = document.getElementById("pause-tuning");
  // Who tunes a job that others start shows by what it decides.
  const tuned = model.job?.tuning != null || model.decisions.some((one) => one.step != null);
  pause.disabled = !(running && tuned);
  pause.textContent = model.paused ? "Resume tuning" : "Pause tuning";
  pause.setAttribute("aria-pressed", String(model.paused));
  document.getElementById("download-trace").href = `/trace?token=${token}`;
}

function listenToControls() {
  for (const id of ["resize-workers", "set-partition", "set-credit"]) {
    document.getElementById(id).addEventListener("input", () => controls.touched.add(id));
  }
  document.getElementById("resize-form").addEventListener("submit", (event) => {
    event.preventDefault();
    post("/resize", { workers: Number(document.getElementById("resize-workers").value) });
  });
  document.getElementById("settings-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const [partition, credit] = ["set-partition", "set-credit"].map((id) => document.getElementById(id).value);
    post("/settings", { partition, credit });
  });
  document.getElementById("pause-tuning").addEventListener("click", () => post("/tuning", { paused: !model.paused }));
}
