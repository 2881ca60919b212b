// The kinds of marks: how each is drawn, what it contributes to the limits, and what it says at the cursor.

const DASHES = { solid: '', dashed: '7 4', dotted: '0.1 4', dashdot: '8 4 0.1 4', longdash: '14 5' };

const paint = (mark) => `var(--${mark.colour})`;

function lineStyle(mark) {
  const style = { class: 'curve', stroke: paint(mark), 'stroke-width': 1.6 };
  // Dots are dashes of no length with round ends, and need more weight than a line.
  if (mark.dash !== 'solid') style['stroke-dasharray'] = DASHES[mark.dash];
  if (mark.dash === 'dotted') style['stroke-width'] = 2.4;
  return style;
}

function area(tag, mark, opacity, attributes) {
  return shape(tag, { fill: paint(mark), 'fill-opacity': opacity, ...attributes });
}

// A rectangle over the whole height of a plot.
const box = (left, right, y) => ({ x: left, y: y.stop, width: Math.max(right - left, 0), height: y.start - y.stop });

// How strong the colour of a band is together with that of the wider ones below it.
function below(mark, all) {
  const before = all.slice(0, all.indexOf(mark) + 1);
  const wider = before.filter((m) => m.type === 'band' && m.x === mark.x && m.colour === mark.colour);
  return 1 - wider.reduce((left, m) => left * (1 - m.opacity), 1);
}

const KINDS = {
  line: {
    draw: (m, x, y) => [shape('path', { d: linePath(m.x, m.y, x, y), ...lineStyle(m) })],
    values: (m) => (m.frame ? [m.y] : []),
    loose: (m) => (m.frame ? [] : [m.y]),
    columns: (m) => [[m.name, m.y]],
    swatch: (m) => [shape('path', { d: 'M1 7H25', ...lineStyle(m) })],
  },
  band: {
    draw: (m, x, y) => [area('path', m, m.opacity, { d: bandPath(m.x, m.low, m.high, x, y) })],
    values: () => [],
    loose: (m) => [m.low, m.high],
    columns: (m) => [[`${m.name}, low`, m.low], [`${m.name}, high`, m.high]],
    swatch: (m, all) => [area('rect', m, below(m, all), { x: 1, y: 1, width: 24, height: 12 })],
  },
  points: {
    draw: (m, x, y) => {
      const d = pointsPath(m.x, m.y, x, y, m.symbol, m.size);
      // A pale rim parts large symbols from what is below them.
      const symbols = shape('path', { d, fill: paint(m), class: m.size > 2 ? 'rimmed' : 'plain' });
      if (!m.low) return [symbols];
      const bars = errorPath(m.x, m.low, m.high, x, y, 4);
      return [shape('path', { d: bars, class: 'curve', stroke: paint(m), 'stroke-width': 1.4 }), symbols];
    },
    values: (m) => [m.y, ...(m.low ? [m.low, m.high] : [])],
    loose: () => [],
    columns: (m) => [[m.name, m.y], ...(m.low ? [[`${m.name}, low`, m.low], [`${m.name}, high`, m.high]] : [])],
    swatch: (m) => [shape('path', { d: `M13 7${SYMBOLS[m.symbol](Math.max(m.size, 2.5))}`, fill: paint(m) })],
  },
  bars: {
    draw: (m, x, y) => [area('path', m, 0.55, { d: barsPath(m.x, m.y, x, y) })],
    values: (m) => [m.y, [0]],
    loose: () => [],
    columns: (m) => [[m.name, m.y]],
    swatch: (m) => [area('rect', m, 0.55, { x: 7, y: 1, width: 12, height: 12 })],
  },
  span: {
    draw: (m, x, y) => {
      const [left, right] = m.x.map((value) => clamp(x.to(value), x.start, x.stop));
      return [shape('rect', { ...box(left, right, y), class: 'span' })];
    },
    values: () => [],
    loose: () => [],
    columns: () => [],
    swatch: () => [shape('rect', { x: 1, y: 1, width: 24, height: 12, class: 'span' })],
  },
};

// Replaces places in the pool of arrays by the arrays.
function resolved(mark, arrays) {
  const found = { ...mark };
  for (const key of ['x', 'y', 'low', 'high']) if (key in mark) found[key] = arrays[mark[key]];
  return found;
}

// Places where the cursor may stop.
function stops(mark) {
  if (mark.type === 'span') return [];
  if (mark.type === 'bars') return mark.y.map((_, i) => (mark.x[i] + mark.x[i + 1]) / 2);
  return mark.x;
}

// A value between two samples, as the line shows it; null where the line has a gap.
function between(x, values, at) {
  const right = bisect(x, at);
  if (right < x.length && x[right] === at) return values[right];
  if (right === 0 || right === x.length) return null;
  const [a, b] = [values[right - 1], values[right]];
  if (!isNumber(a) || !isNumber(b)) return null;
  return a + ((at - x[right - 1]) / (x[right] - x[right - 1])) * (b - a);
}

function nearest(x, at) {
  const right = clamp(bisect(x, at), 0, x.length - 1);
  return right > 0 && at - x[right - 1] < x[right] - at ? right - 1 : right;
}

// What a mark says at the cursor: a text and, if it has one, the place of a dot. Null: nothing at all.
function saidAt(mark, at, reach) {
  if (mark.type === 'span') return at >= mark.x[0] && at <= mark.x[1] ? { text: '' } : null;
  if (mark.type === 'line') {
    const y = between(mark.x, mark.y, at);
    return { text: number(y), x: at, y };
  }
  if (mark.type === 'band') {
    const [low, high] = [between(mark.x, mark.low, at), between(mark.x, mark.high, at)];
    return { text: isNumber(low) && isNumber(high) ? `${number(low)} … ${number(high)}` : '–' };
  }
  if (mark.type === 'bars') {
    const i = bisect(mark.x, at) - 1;
    return i >= 0 && i < mark.y.length ? { text: number(mark.y[i]), x: at, y: mark.y[i] } : { text: '–' };
  }
  if (!mark.x.length) return { text: '–' };
  const i = nearest(mark.x, at);
  if (Math.abs(mark.x[i] - at) > reach) return { text: '–' };
  const error = mark.low && isNumber(mark.low[i]) ? ` (${number(mark.low[i])} … ${number(mark.high[i])})` : '';
  return { text: number(mark.y[i]) + error, x: mark.x[i], y: mark.y[i] };
}
