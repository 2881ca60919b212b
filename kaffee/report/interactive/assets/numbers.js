// The numbers behind a picture: a table to read and all rows to take away.

const SHOWN_ROWS = 200;

// A table is {title, columns: [name, ...], rows: n, cell: (row, column) => value}.
function tableOf(title, columns) {
  const rows = Math.max(0, ...columns.map(([, values]) => values.length));
  return { title, columns: columns.map(([name]) => name), rows, cell: (i, j) => columns[j][1][i] };
}

// One table for all marks over the same x.
function plotTables(panel) {
  const groups = new Map();
  for (const mark of panel.marks) {
    if (mark.type === 'span') continue;
    const x = panel.x.label || 'x';
    const isBars = mark.type === 'bars';
    const ends = [[`${x}, from`, mark.x.slice(0, -1)], [`${x}, to`, mark.x.slice(1)]];
    if (!groups.has(mark.x)) groups.set(mark.x, isBars ? ends : [[x, named(panel, mark.x)]]);
    // A curve and its points hold the same values.
    const known = groups.get(mark.x).map(([name]) => name);
    groups.get(mark.x).push(...KINDS[mark.type].columns(mark).filter(([name]) => !known.includes(name)));
  }
  return [...groups.values()].map((columns) => tableOf(columns.slice(1).map(([name]) => name).join(', '), columns));
}

function named(panel, x) {
  const names = panel.x.categories;
  return names.length ? x.map((value) => names[Math.round(value)] || value) : x;
}

function shownTable({ title, columns, rows, cell }) {
  const every = Math.max(Math.ceil(rows / SHOWN_ROWS), 1);
  const body = element('tbody');
  for (let i = 0; i < rows; i += every) {
    const cells = columns.map((_, j) => cell(i, j));
    body.append(element('tr', {}, ...cells.map((v) => element('td', {}, typeof v === 'string' ? v : number(v, 5)))));
  }
  const note = every > 1 ? ` (every ${every}th of ${rows} rows)` : '';
  const head = element('tr', {}, ...columns.map((name) => element('th', { scope: 'col' }, name)));
  const table = element('table', {}, element('caption', {}, title + note), element('thead', {}, head), body);
  const attributes = { class: 'scroll numbers', tabindex: 0, role: 'region', 'aria-label': `Numbers: ${title}` };
  return element('div', attributes, table);
}

function csv(tables) {
  const quoted = (value) => {
    const text = String(value ?? '');
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const lines = ({ columns, rows, cell }) => [
    columns.map(quoted).join(','),
    ...Array.from({ length: rows }, (_, i) => columns.map((_, j) => quoted(cell(i, j))).join(',')),
  ];
  return tables.map((table) => lines(table).join('\r\n')).join('\r\n\r\n');
}

function save(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: 'text/csv' }));
  const link = element('a', { href: address, download: name });
  link.click();
  // The browser reads it after this returns.
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

// A button that opens the tables of what is shown now, and `update` for when that changes.
function numbers(figure, title, tables) {
  const box = element('div', { class: 'tables', hidden: '' });
  const toggle = button('Numbers', 'Show the numbers as a table', () => {
    box.hidden = !box.hidden;
    toggle.setAttribute('aria-expanded', String(!box.hidden));
    update();
  });
  toggle.setAttribute('aria-expanded', 'false');
  const update = () => {
    if (box.hidden) return;
    const name = `${title.replace(/[^\p{L}\p{N}]+/gu, '-').slice(0, 60) || 'figure'}.csv`;
    const saving = button('Save as CSV', 'Save all rows as a CSV file', () => save(name, csv(tables())));
    box.replaceChildren(saving, ...tables().map(shownTable));
  };
  figure.append(box);
  return { toggle, update };
}
