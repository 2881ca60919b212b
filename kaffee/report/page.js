// Draw every figure of the page from its own data, in the colours that the reader's system asks for.
"use strict";
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const looks = JSON.parse(document.getElementById("looks").textContent);

function read(figure) {
  let text = figure.querySelector("script").textContent;
  if (dark.matches) {
    for (const [day, night] of Object.entries(looks.colours)) text = text.replaceAll(day, night);
  }
  const { data, layout } = JSON.parse(text);
  layout.template = dark.matches ? looks.dark : looks.light;
  return { data, layout };
}

// A menu of the browser's own, which a keyboard and a phone can use, in place of Plotly's.
function choose(figure, stage, buttons) {
  const label = document.createElement("label");
  const select = document.createElement("select");
  for (const button of buttons) {
    const entry = new DOMParser().parseFromString(button.label, "text/html");
    select.append(new Option(entry.body.textContent));
  }
  select.addEventListener("change", () => Plotly.update(stage, ...structuredClone(buttons[select.selectedIndex].args)));
  label.append("Show ", select);
  label.className = "chooser";
  stage.before(label);
}

// Turning one attractor turns all of them.
function link(stage) {
  const scenes = Object.keys(stage.layout).filter((key) => key.startsWith("scene"));
  let following = false;
  stage.on("plotly_relayout", (change) => {
    const turned = scenes.find((scene) => change[`${scene}.camera`]);
    if (!turned || following) return;
    following = true;
    const camera = Object.fromEntries(scenes.map((scene) => [`${scene}.camera`, change[`${turned}.camera`]]));
    Plotly.relayout(stage, camera).then(() => { following = false; });
  });
}

function draw() {
  const narrow = window.innerWidth < 600;
  const tools = { responsive: true, displaylogo: false, displayModeBar: narrow ? false : "hover" };
  for (const figure of document.querySelectorAll("figure.plot")) {
    const stage = figure.querySelector(".stage");
    const { data, layout } = read(figure);
    const buttons = (layout.updatemenus || []).flatMap((menu) => menu.buttons);
    delete layout.updatemenus;
    layout.margin = { t: layout.scene || layout.xaxis2 ? 50 : 34 };
    const flat = ["zoom2d", "pan2d", "resetScale2d"];
    const config = { ...tools, modeBarButtons: [["toImage"], layout.scene ? ["resetCameraDefault3d"] : flat] };
    if (narrow && !layout.scene) layout.dragmode = false;  // a finger scrolls the page
    if (narrow) {
      // From farther away, where subplots are higher than wide.
      const scenes = Object.keys(layout).filter((key) => key.startsWith("scene"));
      for (const { camera } of scenes.map((key) => layout[key])) for (const axis of "xyz") camera.eye[axis] *= 1.25;
    }
    figure.querySelector(".chooser")?.remove();
    if (buttons.length) choose(figure, stage, buttons);
    Plotly.react(stage, data, layout, config).then(() => {
      if (layout.scene && !stage.dataset.drawn) link(stage);
      stage.dataset.drawn = "true";
    });
  }
}
dark.addEventListener("change", draw);
draw();
