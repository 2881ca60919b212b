// Elements, numbers for people, colours. Texts only ever enter the page as text nodes and attributes.

// The namespace comes from the parser: the file holds no address at all.
const SVG = new DOMParser().parseFromString('<svg/>', 'text/html').querySelector('svg').namespaceURI;

function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== undefined && value !== null) node.setAttribute(name, value);
  }
  return node;
}

function element(tag, attributes, ...children) {
  const node = set(document.createElement(tag), attributes);
  node.append(...children);
  return node;
}

function shape(tag, attributes, ...children) {
  const node = set(document.createElementNS(SVG, tag), attributes);
  node.append(...children);
  return node;
}

function button(text, label, action) {
  const node = element('button', { type: 'button', 'aria-label': label, title: label }, text);
  node.addEventListener('click', action);
  return node;
}

// A select with its label; nothing to choose: nothing shown.
function chooser(label, options, chosen, action) {
  const select = element('select', {}, ...options.map((name, i) => element('option', { value: i }, name)));
  select.value = chosen;
  select.addEventListener('change', () => action(Number(select.value)));
  return element('label', { class: 'chooser' }, `${label} `, select);
}

// The part of a figure that has the focus and takes keys. A screen reader hands them on to an application only.
function stageOf(kind, label, ...children) {
  const described = { role: 'application', 'aria-roledescription': 'interactive figure', 'aria-label': label };
  return element('div', { class: `stage${kind}`, tabindex: 0, ...described }, ...children);
}

// Beyond this is as good as infinite: the difference of two such numbers is not finite any more.
const isNumber = (value) => typeof value === 'number' && Math.abs(value) < 1e300;

// A value with `digits` significant digits and a real minus sign.
function number(value, digits = 4) {
  if (!isNumber(value)) return '–';
  if (value === 0) return '0';
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 10 ** Math.max(digits, 6)) return power(value, digits);
  const decimals = Math.max(digits - 1 - Math.floor(Math.log10(size)), 0);
  return value.toFixed(decimals).replace('-', '−');
}

function power(value, digits = 2) {
  const [mantissa, exponent] = value.toExponential(Math.max(digits - 1, 0)).split('e');
  return `${mantissa.replace('-', '−')}·10${superscript(Number(exponent))}`;
}

function superscript(exponent) {
  return [...String(exponent)].map((c) => (c === '-' ? '⁻' : '⁰¹²³⁴⁵⁶⁷⁸⁹'[Number(c)])).join('');
}

const cut = (text, length) => (text.length > length ? `${text.slice(0, Math.max(length - 1, 1))}…` : text);

// Paper is white, whatever the screen is.
const printing = { now: false };

function colour(name) {
  if (printing.now && name === 'ink') return '#1a1a1a';
  if (printing.now && name === 'truth') return '#000000';
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

// The first place in a sorted array whose value is not below x.
function bisect(values, x) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < x) low = middle + 1;
    else high = middle;
  }
  return low;
}

// What went wrong stands in the page, where a test or a reader can find it.
function report(error) {
  const root = document.documentElement;
  root.dataset.errors = `${root.dataset.errors || ''}${error}\n`;
}
