// A plot: controls, axes, marks, cursor and zoom. `state` is all that a reader can change.

const MARGIN = { top: 26, right: 14, bottom: 40 };
const KEYS = '← → read values · + − zoom · 0 all';
const TOUCHES = 'tap to read values · drag sideways to zoom';

function plot(figure, data) {
  const filled = (panel) => ({ ...panel, marks: panel.marks.map((mark) => resolved(mark, data.arrays)) });
  const panels = data.panels.map(filled);
  const state = { chosen: data.choices.map(() => 0), hidden: new Set(), view: null, cursor: null, frame: null };
  const count = (k) => data.choices[k].options.length;
  const chosen = () => panels[state.chosen.reduce((before, i, k) => before * count(k) + i, 0)];
  const shown = () => chosen().marks.filter((mark) => !state.hidden.has(mark.name));

  const image = shape('svg', { role: 'img', 'aria-label': `${data.title}. ${data.caption}` });
  const stage = stageOf('', `${data.title}. Keys: ${KEYS}`, image);
  const readout = element('output', { class: 'readout', 'aria-live': 'polite' });
  const legendPlace = element('div');
  const tools = element('div', { class: 'tools' });
  const hint = element('p', { class: 'hint' }, hintText(data.zoom));
  figure.append(tools, legendPlace, stage, element('div', { class: 'below' }, readout, hint));
  const table = numbers(figure, data.title, () => plotTables(chosen()));

  const api = { data, state, chosen, shown, image, stage, readout, draw, full: () => fullRange(chosen()) };
  data.choices.forEach((choice, k) => {
    if (choice.options.length < 2) return;
    tools.append(
      chooser(choice.label, choice.options, 0, (i) => {
        state.chosen[k] = i;
        state.view = kept(state.view, fullRange(chosen()));
        refresh();
      }),
    );
  });
  const zooming = data.zoom
    ? [
        button('+', 'Magnify', () => zoom(api, 0.5)),
        button('−', 'Show more', () => zoom(api, 2)),
        button('All', 'Show all', () => show(api, null)),
      ]
    : [];
  tools.append(element('span', { class: 'buttons' }, ...zooming, table.toggle));

  function draw() {
    drawPlot(api);
    drawCursor(api);
  }
  function refresh() {
    legendPlace.replaceChildren(legend(chosen().marks, state.hidden, draw));
    table.update();
    draw();
  }
  refresh();
  listen(api);
  return draw;
}

function hintText(zoom) {
  const all = matchMedia('(pointer: coarse)').matches ? TOUCHES : `point or ${KEYS} · drag to zoom`;
  return zoom ? all : all.split(' · ')[0];
}

function fullRange({ x, marks }) {
  if (x.limits) return x.limits;
  const all = marks.flatMap((mark) => mark.x);
  const [low, high] = limits(all, x.log, 0);
  return low < high ? [low, high] : limits(all, x.log, 0.05);
}

// A magnified stretch survives the change to another panel if it lies in it.
const kept = (view, [low, high]) => (view && view[0] < high && view[1] > low ? view : null);

// Limits of y: everything that has to be seen, and of the rest what is not further away than half of that.
function heightLimits(marks, yAxis, [low, high]) {
  if (yAxis.limits) return yAxis.limits;
  const visible = (mark, values) => {
    if (mark.type === 'bars' || values.length < 2) return values;
    // The neighbours of a line outside the view decide how it leaves the frame.
    const more = mark.type === 'line' ? 1 : 0;
    return values.slice(Math.max(bisect(mark.x, low) - more, 0), bisect(mark.x, high) + 1);
  };
  const gather = (kind) =>
    marks
      .flatMap((mark) => KINDS[mark.type][kind](mark).flatMap((values) => visible(mark, values)))
      .filter((value) => drawable(value, yAxis));
  const [needed, loose] = [gather('values'), gather('loose')];
  if (!needed.length || yAxis.log) return limits([...needed, ...loose], yAxis.log, 0.05);
  const [a, b] = limits(needed, false, 0);
  const room = (b - a) / 2 || Math.abs(a) * 0.1 || 1;
  const reached = loose.length ? limits(loose, false, 0).map((value) => clamp(value, a - room, b + room)) : [];
  const found = limits([a, b, ...reached], false, 0.06);
  // Bars stand on the axis.
  return a === 0 && marks.some((mark) => mark.type === 'bars') ? [Math.min(0, ...reached), found[1]] : found;
}

function drawPlot(api) {
  const { state, image, stage } = api;
  const panel = api.chosen();
  const width = Math.max(stage.clientWidth, 200);
  const height = Math.round(clamp(width * 0.46, 250, 400));
  const view = state.view || api.full();
  const [low, high] = heightLimits(api.shown(), panel.y, view);
  const y = scale(low, high, panel.y.log, height - MARGIN.bottom, MARGIN.top);
  const yTicks = ticks(y, (height - MARGIN.top - MARGIN.bottom) / 45);
  const left = 14 + 6.8 * Math.max(2, ...yTicks.map((tick) => tick.label.length));
  const x = scale(view[0], view[1], panel.x.log, left, width - MARGIN.right);
  state.frame = { x, y, stops: null };
  image.replaceChildren(...axes(panel, x, y, yTicks, height));
  const frame = box(x.start, x.stop, y);
  // A picture in the picture: it clips without an identifier, of which a page could have two.
  const clip = shape('svg', { ...frame, viewBox: Object.values(frame).join(' '), class: 'marks' });
  for (const mark of layered(api.shown())) clip.append(...KINDS[mark.type].draw(mark, x, y));
  const isEmpty = ![...clip.querySelectorAll('path')].some((path) => path.getAttribute('d'));
  const middle = { x: (x.start + x.stop) / 2, y: height / 2, 'text-anchor': 'middle' };
  if (isEmpty) clip.append(shape('text', middle, 'nothing to show'));
  image.append(clip, shape('g', { class: 'cursor' }));
  set(image, { width, height, viewBox: `0 0 ${width} ${height}` });
}

// What covers much lies below; a dashed line over a solid one shows both.
function layered(marks) {
  const layer = ({ type, dash, size }) => {
    if (type === 'line') return dash === 'solid' ? 4 : 5;
    if (type === 'points') return size < 3 ? 3 : 6;
    return ['span', 'bars', 'band'].indexOf(type);
  };
  return marks.slice().sort((a, b) => layer(a) - layer(b));
}

function axes(panel, x, y, yTicks, height) {
  const parts = [shape('rect', { ...box(x.start, x.stop, y), class: 'ground' })];
  for (const { value, label } of yTicks) {
    const at = place(y.to(value));
    parts.push(shape('path', { d: `M${x.start} ${at}H${x.stop}`, class: value === 0 ? 'grid zero' : 'grid' }));
    parts.push(shape('text', { x: x.start - 7, y: at + 4, 'text-anchor': 'end' }, label));
  }
  for (const { value, label } of xTicks(panel.x, x)) {
    const at = place(x.to(value));
    parts.push(shape('path', { d: `M${at} ${y.start}v4`, class: 'tick' }));
    parts.push(shape('text', { x: at, y: y.start + 17, 'text-anchor': 'middle' }, label));
  }
  parts.push(shape('path', { d: `M${x.start} ${y.start}H${x.stop}`, class: 'axis' }));
  const letters = (x.stop - x.start) / 7;
  const middle = { x: (x.start + x.stop) / 2, y: height - 6, 'text-anchor': 'middle', class: 'label' };
  parts.push(shape('text', middle, cut(panel.x.label, letters)));
  parts.push(shape('text', { x: 2, y: 13, class: 'label' }, cut(panel.y.label, letters)));
  return parts;
}

function xTicks({ categories }, x) {
  if (!categories.length) return ticks(x, (x.stop - x.start) / 68);
  const all = categories.map((name, value) => ({ label: cut(name, 16), value }));
  const room = (x.stop - x.start) / (8 * (2 + Math.max(...all.map(({ label }) => label.length))));
  const every = Math.max(Math.ceil((x.high - x.low) / Math.max(room, 1)), 1);
  return all.filter(({ value }) => value % every === 0 && value >= x.low && value <= x.high);
}
