// From samples to SVG paths. Of many samples in one column of pixels only the extremes are kept: the picture is the
// same, and a hundred thousand samples are as quick as a thousand.

const place = (value) => Math.round(value * 10) / 10;

// The stretch of a sorted x that is in view, with a neighbour on each side so that lines leave the frame.
function inView(x, axis) {
  return [Math.max(bisect(x, axis.low) - 1, 0), Math.min(bisect(x, axis.high) + 1, x.length)];
}

const drawable = (value, axis) => isNumber(value) && (!axis.log || value > 0);

// Calls `piece` with the pixels [[px, py], ...] of every stretch without gaps.
function stretches(x, y, xAxis, yAxis, piece) {
  const [first, last] = inView(x, xAxis);
  let points = [];
  const flush = () => {
    if (points.length) piece(points);
    points = [];
  };
  for (let i = first; i < last; i += 1) {
    if (drawable(y[i], yAxis) && drawable(x[i], xAxis)) points.push([xAxis.to(x[i]), yAxis.to(y[i])]);
    else flush();
  }
  flush();
}

function thinned(points, width) {
  if (points.length < 4 * width) return points;
  const kept = [];
  let start = 0;
  while (start < points.length) {
    const column = Math.floor(points[start][0]);
    let [end, low, high] = [start, start, start];
    while (end < points.length && Math.floor(points[end][0]) === column) {
      if (points[end][1] < points[low][1]) low = end;
      if (points[end][1] > points[high][1]) high = end;
      end += 1;
    }
    for (const i of [...new Set([start, low, high, end - 1])].sort((a, b) => a - b)) kept.push(points[i]);
    start = end;
  }
  return kept;
}

const pairs = (points) => points.map(([px, py]) => `${place(px)} ${place(py)}`).join('L');

function linePath(x, y, xAxis, yAxis) {
  const parts = [];
  const width = Math.abs(xAxis.stop - xAxis.start);
  stretches(x, y, xAxis, yAxis, (points) => {
    // A lone sample is a dot: a line of no length with round ends.
    parts.push(points.length > 1 ? `M${pairs(thinned(points, width))}` : `M${pairs(points)}h.01`);
  });
  return parts.join('');
}

function bandPath(x, low, high, xAxis, yAxis) {
  // Both edges have to be there, and on a logarithmic axis an edge at zero is the floor.
  const floor = (value) => (isNumber(value) && yAxis.log ? Math.max(value, yAxis.low / 10) : value);
  const lows = low.map((value, i) => (isNumber(high[i]) ? floor(value) : null));
  const highs = high.map((value, i) => (isNumber(low[i]) ? floor(value) : null));
  const width = Math.abs(xAxis.stop - xAxis.start);
  const edges = [[], []];
  stretches(x, highs, xAxis, yAxis, (points) => edges[0].push(thinned(points, width)));
  stretches(x, lows, xAxis, yAxis, (points) => edges[1].push(thinned(points, width)));
  return edges[0].map((upper, i) => `M${pairs([...upper, ...edges[1][i].slice().reverse()])}Z`).join('');
}

const SYMBOLS = {
  circle: (r) => `m${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`,
  square: (r) => `m${-0.9 * r} ${-0.9 * r}h${1.8 * r}v${1.8 * r}h${-1.8 * r}Z`,
  triangle: (r) => `m0 ${-1.2 * r}l${1.1 * r} ${2 * r}h${-2.2 * r}Z`,
  diamond: (r) => `m0 ${-1.3 * r}l${1.2 * r} ${1.3 * r}l${-1.2 * r} ${1.3 * r}l${-1.2 * r} ${-1.3 * r}Z`,
  cross: (r) => {
    const [a, b] = [0.6 * r, 0.8 * r];
    return `m${-r} ${-b / 2}h${a}v${-a}h${b}v${a}h${a}v${b}h${-a}v${a}h${-b}v${-a}h${-a}Z`;
  },
};

// Points on the same spot are drawn once.
function pointsPath(x, y, xAxis, yAxis, symbol, size) {
  const seen = new Set();
  const mark = SYMBOLS[symbol](size);
  stretches(x, y, xAxis, yAxis, (points) => {
    for (const [px, py] of points) {
      const visible = px >= xAxis.start - 1 && px <= xAxis.stop + 1;
      if (visible) seen.add(`M${Math.round(2 * px) / 2} ${Math.round(2 * py) / 2}${mark}`);
    }
  });
  return [...seen].join('');
}

function errorPath(x, low, high, xAxis, yAxis, cap) {
  const [first, last] = inView(x, xAxis);
  const parts = [];
  for (let i = first; i < last; i += 1) {
    if (drawable(low[i], yAxis) && drawable(high[i], yAxis)) {
      const [px, top, bottom] = [place(xAxis.to(x[i])), place(yAxis.to(high[i])), place(yAxis.to(low[i]))];
      parts.push(`M${px} ${bottom}V${top}M${px - cap} ${bottom}h${2 * cap}M${px - cap} ${top}h${2 * cap}`);
    }
  }
  return parts.join('');
}

function barsPath(edges, heights, xAxis, yAxis) {
  const base = place(yAxis.to(yAxis.log ? yAxis.low : clamp(0, yAxis.low, yAxis.high)));
  return heights
    .map((height, i) => {
      if (!drawable(height, yAxis)) return '';
      const [left, right] = [place(xAxis.to(edges[i]) + 0.5), place(xAxis.to(edges[i + 1]) - 0.5)];
      return `M${left} ${base}V${place(yAxis.to(height))}H${Math.max(right, left)}V${base}Z`;
    })
    .join('');
}
