// Reading and magnifying a plot by pointer and keyboard.

// Where the cursor may stand in the view, from left to right.
function cursorStops(api) {
  const { frame } = api.state;
  if (!frame.stops) frame.stops = allStops(api, frame.x);
  return frame.stops;
}

function allStops(api, x) {
  const names = api.chosen().x.categories;
  const all = names.length ? names.map((_, i) => i) : [...new Set(api.shown().flatMap(stops))].sort((a, b) => a - b);
  return all.filter((value) => value >= x.low && value <= x.high && (!x.log || value > 0));
}

function drawCursor(api) {
  const { state, image, readout } = api;
  const layer = image.querySelector('.cursor');
  layer.replaceChildren();
  readout.replaceChildren();
  const { x, y } = state.frame;
  if (state.cursor === null || state.cursor < x.low || state.cursor > x.high) return;
  const panel = api.chosen();
  const at = place(x.to(state.cursor));
  layer.append(shape('path', { d: `M${at} ${y.stop}V${y.start}`, class: 'line' }));
  const name = panel.x.categories[state.cursor];
  // As many digits as neighbouring stops need to differ, also far from zero.
  const digits = clamp(Math.ceil(Math.log10(Math.max(Math.abs(x.low), Math.abs(x.high)) / (x.high - x.low))), 0, 10) + 4;
  const head = name === undefined ? `${panel.x.label || 'x'} = ${number(state.cursor, digits)}` : name;
  readout.append(element('strong', {}, head));
  const reach = panel.x.categories.length ? 0.5 : Math.abs(x.from(x.start + 3) - x.from(x.start));
  for (const [entry, group] of entries(api.shown())) {
    const said = group.map((mark) => saidAt(mark, state.cursor, reach)).filter((s) => s);
    const best = said.find((s) => s.text !== '–') || said[0];
    if (!best) continue;
    readout.append(element('span', {}, `${entry} `, element('b', {}, best.text)));
    if (isNumber(best.y) && drawable(best.y, y)) {
      const [cx, cy] = [place(x.to(best.x)), place(y.to(best.y))];
      layer.append(shape('circle', { cx, cy, r: 4, fill: paint(group[0]), class: 'dot' }));
    }
  }
}

function moveCursor(api, steps) {
  const all = cursorStops(api);
  if (!all.length) return;
  const { state } = api;
  const { x } = state.frame;
  if (state.cursor === null) state.cursor = all[Math.floor(all.length / 2)];
  else {
    // Samples closer than a pixel are passed over: magnify to reach each of them.
    for (let left = Math.abs(steps); left > 0; left -= 1) {
      const next = x.from(x.to(state.cursor) + 0.999 * Math.sign(steps));
      const isAhead = steps > 0 ? (v) => v > state.cursor && v >= next : (v) => v < state.cursor && v <= next;
      state.cursor = (steps > 0 ? all.find(isAhead) : all.findLast(isAhead)) ?? all.at(steps > 0 ? -1 : 0);
    }
  }
  drawCursor(api);
}

function show(api, view) {
  const [low, high] = api.full();
  const log = api.chosen().x.log;
  const far = view && [Math.max(view[0], low), Math.min(view[1], high)];
  // Down to the resolution of the numbers in the page, and back to everything at the full width.
  const width = far && (log ? Math.log10(far[1] / far[0]) / Math.log10(high / low) : (far[1] - far[0]) / (high - low));
  if (far && !(width > 1e-5)) return;
  api.state.view = far && width < 0.999 ? far : null;
  api.draw();
}

function zoom(api, factor) {
  if (!api.data.zoom) return;
  const { cursor, frame: { x } } = api.state;
  const inside = cursor !== null && cursor >= x.low && cursor <= x.high;
  const centre = inside ? x.to(cursor) : (x.start + x.stop) / 2;
  show(api, [x.from(centre + (x.start - centre) * factor), x.from(centre + (x.stop - centre) * factor)]);
}

function listen(api) {
  const { state, stage, image } = api;
  const keys = {
    ArrowLeft: (event) => moveCursor(api, event.shiftKey ? -10 : -1),
    ArrowRight: (event) => moveCursor(api, event.shiftKey ? 10 : 1),
    Home: () => { state.cursor = cursorStops(api)[0] ?? null; drawCursor(api); },
    End: () => { state.cursor = cursorStops(api).at(-1) ?? null; drawCursor(api); },
    Escape: () => { state.cursor = null; drawCursor(api); },
    '+': () => zoom(api, 0.5),
    '=': () => zoom(api, 0.5),
    '-': () => zoom(api, 2),
    0: () => show(api, null),
  };
  stage.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
    event.preventDefault();
    keys[event.key](event);
  });

  let drag = null;
  const pixel = (event) => event.clientX - image.getBoundingClientRect().left;
  const point = (event) => {
    const all = cursorStops(api);
    if (!all.length) return;
    state.cursor = all[nearest(all, state.frame.x.from(pixel(event)))];
    drawCursor(api);
  };
  stage.addEventListener('pointerdown', (event) => {
    if (event.button === 0) drag = { from: pixel(event), far: false };
  });
  stage.addEventListener('pointermove', (event) => {
    if (!drag) {
      if (event.pointerType === 'mouse') point(event);
      return;
    }
    if (!drag.far && Math.abs(pixel(event) - drag.from) > 6 && api.data.zoom) {
      drag.far = true;
      stage.setPointerCapture(event.pointerId);
    }
    if (drag.far) select(api, drag.from, pixel(event));
  });
  stage.addEventListener('pointerup', (event) => {
    if (drag && drag.far) {
      show(api, ends(api, drag.from, pixel(event)).map(state.frame.x.from));
    } else if (drag) point(event);
    drag = null;
  });
  stage.addEventListener('pointercancel', () => { drag = null; drawCursor(api); });
  stage.addEventListener('pointerleave', (event) => {
    if (drag || event.pointerType !== 'mouse' || document.activeElement === stage) return;
    state.cursor = null;
    drawCursor(api);
  });
  stage.addEventListener('dblclick', () => show(api, null));
}

// Two pixels in order, inside the frame.
function ends(api, from, to) {
  const { x } = api.state.frame;
  return [from, to].map((at) => clamp(at, x.start, x.stop)).sort((a, b) => a - b);
}

function select(api, from, to) {
  const chosen = shape('rect', { ...box(...ends(api, from, to), api.state.frame.y), class: 'chosen' });
  api.image.querySelector('.cursor').replaceChildren(chosen);
}
