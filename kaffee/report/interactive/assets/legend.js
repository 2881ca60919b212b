// The legend, whose entries hide and show what they name.

// Marks by their names: a curve and its points are one entry.
function entries(marks) {
  const found = new Map();
  for (const mark of marks) found.set(mark.name, [...(found.get(mark.name) || []), mark]);
  return found;
}

function legend(marks, hidden, changed) {
  const box = element('div', { class: 'legend', role: 'group', 'aria-label': 'Legend: choose what is shown' });
  for (const [name, group] of entries(marks)) {
    const samples = group.flatMap((mark) => KINDS[mark.type].swatch(mark, marks));
    const swatch = shape('svg', { width: 26, height: 14, 'aria-hidden': 'true' }, ...samples);
    const attributes = { type: 'button', 'aria-pressed': String(!hidden.has(name)) };
    const entry = element('button', attributes, swatch, element('span', {}, name));
    entry.addEventListener('click', () => {
      if (hidden.has(name)) hidden.delete(name);
      else hidden.add(name);
      entry.setAttribute('aria-pressed', String(!hidden.has(name)));
      changed();
    });
    box.append(entry);
  }
  return box;
}
