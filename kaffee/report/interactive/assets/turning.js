// Three coordinates on a canvas: turned, projected without perspective, the far side fainter.

const SHADES = 5;
const REACH = 1.35; // half the edge of the room around the unit cube in which a run is drawn

// Columns of a view's three axes, on the scale of the reference.
function centredAxes(axes, ranges) {
  return axes.map((values, k) => {
    const [low, high] = ranges[k];
    const half = (high - low) / 2 || 1;
    return values.map((value) => (isNumber(value) ? (value - (low + high) / 2) / half : null));
  });
}

function turn({ yaw, pitch }) {
  const [cy, sy, cp, sp] = [Math.cos(yaw), Math.sin(yaw), Math.cos(pitch), Math.sin(pitch)];
  // To the right, upward, towards the eye.
  return (x, y, z) => {
    const away = sy * x + cy * y;
    return [cy * x - sy * y, cp * z + sp * away, sp * z - cp * away];
  };
}

const CORNERS = [-1, 1].flatMap((x) => [-1, 1].flatMap((y) => [-1, 1].map((z) => [x, y, z])));
const neighbours = (a, b) => a.filter((value, k) => value !== b[k]).length === 1;
const EDGES = CORNERS.flatMap((a, i) => CORNERS.slice(i + 1).filter((b) => neighbours(a, b)).map((b) => [a, b]));

function drawCanvas(canvas, path, names, view, ink) {
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext('2d');
  context.scale(ratio, ratio);
  const project = turn(view);
  const size = (Math.min(width, height) / 2) * 0.63 * view.zoom;
  const at = (x, y, z) => {
    const [right, up, depth] = project(x, y, z);
    return [width / 2 + size * right, height / 2 - size * up, depth];
  };
  drawFrame(context, at, names, colour('ink'));
  drawRun(context, at, path, ink);
}

function drawFrame(context, at, names, ink) {
  context.strokeStyle = ink;
  context.lineWidth = 0.6;
  // The corner furthest away: its three edges are behind everything.
  const back = CORNERS.reduce((a, b) => (at(...a)[2] < at(...b)[2] ? a : b));
  for (const [a, b] of EDGES) {
    context.globalAlpha = a === back || b === back ? 0.1 : 0.28;
    context.beginPath();
    context.moveTo(...at(...a).slice(0, 2));
    context.lineTo(...at(...b).slice(0, 2));
    context.stroke();
  }
  context.globalAlpha = 0.8;
  context.fillStyle = ink;
  context.font = '12px system-ui, sans-serif';
  context.textAlign = 'center';
  context.textBaseline = 'middle';
  const centre = at(0, 0, 0);
  names.forEach((name, k) => {
    // Each axis is named at the one of its four edges that is furthest from the middle of the picture.
    const middles = EDGES.filter(([a, b]) => a[k] !== b[k]).map(([a, b]) => at(...a.map((v, i) => (v + b[i]) / 2)));
    const outward = (p) => (k === 2 ? centre[0] - p[0] : p[1] - centre[1]);
    const [x, y] = middles.reduce((p, q) => (outward(p) >= outward(q) ? p : q));
    const length = Math.hypot(x - centre[0], y - centre[1]) || 1;
    const text = cut(name, 14);
    const half = context.measureText(text).width / 2 + 1;
    const across = clamp(x + (16 * (x - centre[0])) / length, half, context.canvas.clientWidth - half);
    context.fillText(text, across, y + (16 * (y - centre[1])) / length);
  });
}

function drawRun(context, at, [xs, ys, zs], ink) {
  const n = Math.min(xs.length, ys.length, zs.length);
  const shades = Array.from({ length: SHADES }, () => new Path2D());
  const inside = (v) => v !== null && Math.abs(v) <= REACH;
  let [last, drawn] = [null, 0];
  for (let i = 0; i < n; i += 1) {
    if (!(inside(xs[i]) && inside(ys[i]) && inside(zs[i]))) {
      last = null;
      continue;
    }
    const here = at(xs[i], ys[i], zs[i]);
    const shade = shades[clamp(Math.floor(((here[2] + 1.6) / 3.2) * SHADES), 0, SHADES - 1)];
    shade.moveTo(...(last ? [last[0], last[1]] : [here[0] - 0.5, here[1]]));
    shade.lineTo(here[0], here[1]);
    last = here;
    drawn += 1;
  }
  context.strokeStyle = ink;
  context.lineCap = 'round';
  context.lineWidth = drawn > 200 ? 0.7 : drawn > 1 ? 1.2 : 5;
  shades.forEach((shade, i) => {
    context.globalAlpha = 0.25 + (0.7 * i) / (SHADES - 1);
    context.stroke(shade);
  });
  context.globalAlpha = 1;
  if (drawn === 0) {
    context.fillStyle = ink;
    context.fillText('nothing in view', context.canvas.clientWidth / 2, context.canvas.clientHeight / 2);
  }
}
