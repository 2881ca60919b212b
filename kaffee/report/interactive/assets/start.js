// Draws every figure of the page when it is loaded, and again when its width or the colours change.

const DRAW = { plot, attractor };

function begin() {
  const started = performance.now();
  const redraws = [];
  for (const figure of document.querySelectorAll('figure.interactive')) {
    try {
      const data = JSON.parse(figure.querySelector('script').textContent);
      if (!(data.kind in DRAW)) throw new Error(`Unknown kind of figure: ${data.kind}`);
      const draw = DRAW[data.kind](figure, data);
      watch(figure, draw);
      redraws.push(draw);
      figure.dataset.drawn = 'true';
    } catch (error) {
      // One figure that fails must not take the others along.
      figure.dataset.drawn = 'false';
      figure.append(element('p', { class: 'note' }, `This figure could not be drawn: ${error.message}`));
      report(error);
      console.error(error);
    }
  }
  const all = () => redraws.forEach((draw) => draw());
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', all);
  for (const [event, now] of [['beforeprint', true], ['afterprint', false]]) {
    window.addEventListener(event, () => {
      printing.now = now;
      all();
    });
  }
  document.documentElement.dataset.milliseconds = Math.round(performance.now() - started);
}

function watch(figure, draw) {
  const stage = figure.querySelector('.stage');
  let width = stage.clientWidth;
  new ResizeObserver(() => {
    if (stage.clientWidth === width) return;
    width = stage.clientWidth;
    // After the observer's own round: drawing changes heights, which would start another one.
    requestAnimationFrame(draw);
  }).observe(stage);
}

window.addEventListener('error', (event) => report(event.message));
begin();
