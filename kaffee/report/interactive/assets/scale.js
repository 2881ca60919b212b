// Axes: limits, the map to pixels and back, ticks and their labels.

const STEPS = [1, 2, 2.5, 5, 10];

function scale(low, high, log, start, stop) {
  const f = log ? Math.log10 : (value) => value;
  const inverse = log ? (value) => 10 ** value : (value) => value;
  const [a, b] = [f(low), f(high)];
  // A pixel beyond this would be the same to the eye and too much for some browsers.
  const far = 1e5;
  const to = (value) => clamp(start + ((f(value) - a) / (b - a)) * (stop - start), -far, far);
  const from = (pixel) => inverse(a + ((pixel - start) / (stop - start)) * (b - a));
  return { low, high, log, to, from, start, stop };
}

// Limits around values; never empty, and positive on a logarithmic axis.
function limits(values, log, margin) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (isNumber(value) && (!log || value > 0)) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  if (low > high) return log ? [0.1, 1] : [0, 1];
  if (log) {
    const pad = margin * Math.log10(high / low) || (margin && 0.3);
    return [low / 10 ** pad, high * 10 ** pad];
  }
  const pad = margin * (high - low) || (margin && (Math.abs(low) * 0.1 || 1));
  return [low - pad, high + pad];
}

function ticks(axis, room) {
  return axis.log ? logTicks(axis, room) : linearTicks(axis, room);
}

function linearTicks({ low, high }, room) {
  const rough = (high - low) / Math.max(room, 1);
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = size * STEPS.find((factor) => factor * size >= rough * 0.999);
  if (!(step > 0) || !Number.isFinite(step)) return [];
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  const count = Math.min(last - first, 50);
  const at = Array.from({ length: count + 1 }, (_, i) => (first + i) * step);
  const largest = Math.max(...at.map(Math.abs));
  const far = largest >= 1e6 || largest < 1e-3;
  const decimals = Math.max(-Math.floor(Math.log10(step) + 1e-9), 0);
  // A step of 2.5 needs a place more than its size says.
  const more = Math.abs((step / 10 ** Math.floor(Math.log10(step) + 1e-9)) % 1) > 1e-6 ? 1 : 0;
  const places = clamp(Math.ceil(Math.log10(largest / step)) + 1 + more, 1, 15);
  const label = (value) => (far ? power(value, places) : value.toFixed(decimals + more).replace('-', '−'));
  return at.map((value) => ({ value, label: Math.abs(value) < step / 1e6 ? '0' : label(value) }));
}

function logTicks({ low, high }, room) {
  const [first, last] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
  // Less than two decades: numbers between them.
  if (last - first < 1) {
    const made = [];
    for (let exponent = first - 1; exponent <= last; exponent += 1) {
      for (const factor of [1, 2, 5]) {
        const value = factor * 10 ** exponent;
        if (value >= low && value <= high) made.push({ value, label: number(value, 1) });
      }
    }
    if (made.length > 1) return made;
    return linearTicks({ low, high }, room).filter((tick) => tick.value > 0);
  }
  const every = Math.max(Math.ceil((last - first + 1) / Math.max(room, 1)), 1);
  const made = [];
  for (let exponent = first; exponent <= last; exponent += every) {
    const near = exponent >= -2 && exponent <= 3;
    const label = near ? String(Number((10 ** exponent).toPrecision(3))) : `10${superscript(exponent)}`;
    made.push({ value: 10 ** exponent, label });
  }
  return made;
}
