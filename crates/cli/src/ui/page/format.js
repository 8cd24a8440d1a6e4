// Numbers and times for people. Knows nothing of the page.

const SIZES = ["B", "KiB", "MiB", "GiB", "TiB"];

function bytes(count) {
  if (count == null) return "unlimited";
  let size = 0;
  while (count >= 1024 && size < SIZES.length - 1) { count /= 1024; size += 1; }
  return `${short(count)} ${SIZES[size]}`;
}

function rate(perSecond) {
  const units = ["B/s", "kB/s", "MB/s", "GB/s", "TB/s"];
  let size = 0;
  while (perSecond >= 1000 && size < units.length - 1) { perSecond /= 1000; size += 1; }
  return `${short(perSecond)} ${units[size]}`;
}

function short(number) {
  if (!Number.isFinite(number)) return "–";
  const size = Math.abs(number);
  if (size >= 1000) return Math.round(number).toLocaleString("en");
  if (size >= 100) return number.toFixed(0);
  if (size >= 10) return trimmed(number.toFixed(1));
  if (size >= 0.1 || size === 0) return trimmed(number.toFixed(2));
  return trimmed(number.toPrecision(2));
}

function trimmed(text) {
  return text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text;
}

function percent(share) {
  return `${Math.round(100 * share)} %`;
}

function gain(factor) {
  const change = 100 * (factor - 1);
  return `${change >= 0 ? "+" : "−"}${Math.abs(change).toFixed(1)} %`;
}

function microseconds(time) {
  if (time >= 1e6) return `${short(time / 1e6)} s`;
  if (time >= 1000) return `${short(time / 1000)} ms`;
  return `${short(time)} µs`;
}

function span(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const two = (number) => String(number).padStart(2, "0");
  const hours = Math.floor(whole / 3600);
  const rest = `${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
  return hours > 0 ? `${hours}:${rest}` : rest;
}

// Groups of ranks, those that follow each other as one: 0–3 8 | 4–7. As many as there is room for.
function listed(groups, most = 120) {
  let text = "";
  for (const [at, ranks] of groups.entries()) {
    const words = runs([...ranks].sort((one, other) => one - other)).map(([from, to]) => (from === to ? `${from}` : to === from + 1 ? `${from} ${to}` : `${from}–${to}`));
    const next = `${at === 0 ? "" : " | "}${words.join(" ")}`;
    const rest = groups.length - at;
    if (text.length + next.length > most) return at === 0 ? `${next.slice(0, next.lastIndexOf(" ", most))} …${rest > 1 ? ` and ${rest - 1} more` : ""}` : `${text} … and ${rest} more`;
    text += next;
  }
  return text;
}

// First and last of numbers that follow each other, of a sorted list.
function runs(numbers) {
  const found = [];
  for (const number of numbers) {
    const last = found[found.length - 1];
    if (last && last[1] + 1 === number) last[1] = number;
    else found.push([number, number]);
  }
  return found;
}

// Round steps of an axis, about `count` of them.
function ticks(from, to, count) {
  const rough = (to - from) / Math.max(1, count);
  if (!(rough > 0) || !Number.isFinite(rough)) return [];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to + step / 1e6; at += step) found.push(at);
  return found;
}
