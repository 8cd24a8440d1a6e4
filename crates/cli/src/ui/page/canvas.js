// What all drawings have in common: a canvas that is as sharp as the screen, colours of the theme, and a tip at the pointer.

const colours = {};

function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["panel", "ink", "soft", "line", "faint", "accent", "computing", "waiting", "queueing", "communicating", "good", "bad", "person", "group"]) {
    colours[name] = style.getPropertyValue(`--${name}`).trim();
  }
}

const FONT = '11px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif';

// Size the canvas for the screen; its pencil, and its size in points.
function prepared(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const pencil = canvas.getContext("2d");
  pencil.setTransform(ratio, 0, 0, ratio, 0, 0);
  pencil.clearRect(0, 0, width, height);
  pencil.font = FONT;
  pencil.textBaseline = "middle";
  return { pencil, width, height };
}

function line(pencil, x1, y1, x2, y2, colour, width = 1, dash = []) {
  pencil.strokeStyle = colour;
  pencil.lineWidth = width;
  pencil.setLineDash(dash);
  pencil.beginPath();
  pencil.moveTo(x1, y1);
  pencil.lineTo(x2, y2);
  pencil.stroke();
  pencil.setLineDash([]);
}

function words(pencil, text, x, y, colour, align = "left") {
  pencil.fillStyle = colour;
  pencil.textAlign = align;
  pencil.fillText(text, x, y);
}

// As much of a text as fits.
function fitting(pencil, text, width) {
  if (pencil.measureText(text).width <= width) return text;
  let length = text.length;
  while (length > 1 && pencil.measureText(`${text.slice(0, length)}…`).width > width) length -= 1;
  return length > 1 ? `${text.slice(0, length)}…` : "";
}

const tip = document.getElementById("tip");

function showTip(event, text) {
  if (!text) { hideTip(); return; }
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = Math.min(event.clientX + 14, window.innerWidth - box.width - 8);
  const below = event.clientY + 16 + box.height < window.innerHeight;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${below ? event.clientY + 16 : event.clientY - box.height - 10}px`;
}

function hideTip() {
  tip.hidden = true;
}

// The rank that is marked everywhere, or none.
let selected = null;

function select(rank) {
  selected = selected === rank ? null : rank;
  dirty.all();
}
