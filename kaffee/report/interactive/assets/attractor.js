// Attractors side by side: one rotation for all of them.

const START = { yaw: -0.6, pitch: 0.35, zoom: 1 };
const TURN_KEYS = 'drag or arrow keys turn · + − size · 0 start';

function attractor(figure, data) {
  const { options, series } = axesOf(data);
  const state = { ...START, chosen: [0, 1, 2].map((k) => Math.min(k, options.length - 1)) };
  const { trajectories } = data;
  const said = ({ name }) => ({ role: 'img', 'aria-label': `${name}: ${data.title}` });
  const canvases = trajectories.map((run) => element('canvas', said(run)));
  const head = ({ name }) => element('p', { class: 'name' }, name);
  const views = trajectories.map((run, i) => element('div', { class: 'view' }, head(run), canvases[i]));
  const stage = stageOf(' views', `${data.title}. Keys: ${TURN_KEYS}`, ...views);
  const readout = element('output', { class: 'readout' });
  const tools = element('div', { class: 'tools' });
  figure.append(tools, stage, element('div', { class: 'below' }, readout, element('p', { class: 'hint' }, TURN_KEYS)));
  const columns = (run) => data.columns.map((name, k) => [name, run.values[k]]);
  const table = numbers(figure, data.title, () => trajectories.map((run) => tableOf(run.name, columns(run))));

  let paths = [];
  function choose() {
    const ranges = state.chosen.map((k) => limits(series(trajectories[0], k), false, 0));
    paths = trajectories.map((run) => centredAxes(state.chosen.map((k) => series(run, k)), ranges));
    draw();
  }
  function draw() {
    const names = state.chosen.map((k) => options[k]);
    canvases.forEach((canvas, i) => drawCanvas(canvas, paths[i], names, state, colour(trajectories[i].colour)));
    const degrees = (angle) => `${String(Math.round((angle * 180) / Math.PI)).replace('-', '−')}°`;
    const size = state.zoom === 1 ? '' : `, size ${number(state.zoom, 2)}`;
    readout.textContent = `turned ${degrees(state.yaw)}, tilted ${degrees(state.pitch)}${size}`;
  }
  ['x axis', 'y axis', 'z axis'].forEach((label, k) => {
    if (options.length > 3) {
      tools.append(chooser(label, options, state.chosen[k], (i) => {
        state.chosen[k] = i;
        choose();
      }));
    }
  });
  const change = (yaw, pitch, zoom) => {
    // Full turns bring nothing new, and nobody looks from below the floor upside down.
    state.yaw = (state.yaw + yaw) % (2 * Math.PI);
    state.pitch = clamp(state.pitch + pitch, -Math.PI / 2, Math.PI / 2);
    state.zoom = clamp(state.zoom * zoom, 0.25, 8);
    draw();
  };
  const reset = () => {
    Object.assign(state, START);
    draw();
  };
  const buttons = [
    button('+', 'Larger', () => change(0, 0, 1.25)),
    button('−', 'Smaller', () => change(0, 0, 0.8)),
    button('Reset', 'Turn back to the start', reset),
  ];
  tools.append(element('span', { class: 'buttons' }, ...buttons, table.toggle));
  listenTurning(stage, change, reset);
  choose();
  return draw;
}

// The coordinates a reader may choose; fewer than three: also later values of the same ones.
function axesOf({ columns, delay }) {
  const n = columns.length;
  if (n >= 3) return { options: columns, series: (run, k) => run.values[k] };
  const lag = (k) => Math.floor(k / n) * delay;
  const name = (k) => columns[k % n] + (lag(k) ? `(t+${lag(k)})` : '(t)');
  const options = Array.from({ length: n === 1 ? 3 : 4 }, (_, k) => name(k));
  return { options, series: (run, k) => run.values[k % n].slice(lag(k)) };
}

function listenTurning(stage, change, reset) {
  const step = Math.PI / 36;
  const keys = {
    ArrowLeft: () => change(-step, 0, 1),
    ArrowRight: () => change(step, 0, 1),
    ArrowUp: () => change(0, step, 1),
    ArrowDown: () => change(0, -step, 1),
    '+': () => change(0, 0, 1.25),
    '=': () => change(0, 0, 1.25),
    '-': () => change(0, 0, 0.8),
    0: reset,
  };
  stage.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
    event.preventDefault();
    keys[event.key]();
  });
  let last = null;
  stage.addEventListener('pointerdown', (event) => {
    if (event.button !== 0) return;
    last = [event.clientX, event.clientY];
    stage.setPointerCapture(event.pointerId);
  });
  stage.addEventListener('pointermove', (event) => {
    if (!last) return;
    change((event.clientX - last[0]) / 120, (event.clientY - last[1]) / 120, 1);
    last = [event.clientX, event.clientY];
  });
  for (const end of ['pointerup', 'pointercancel']) stage.addEventListener(end, () => { last = null; });
  stage.addEventListener('dblclick', reset);
}
