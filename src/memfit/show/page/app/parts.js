// Pieces that every section is built from: cards, tables, lists, and buttons that save a picture or its numbers.
function card(title, id) {
  const node = element('section', 'card'), row = element('div', 'row'), head = element('h2', '', title);
  node.id = id;
  head.id = `${id}-head`;
  node.setAttribute('aria-labelledby', head.id);
  const tools = element('span', 'tools');
  row.append(head, element('span', 'grow'), tools);
  node.append(row);
  return { node, tools, head };
}

function button(text, action, title) {
  const node = element('button', '', text);
  node.type = 'button';
  if (title) node.title = title;
  node.addEventListener('click', action);
  return node;
}

// Says that it copied, or selects nothing and says why not: a page that is not on the loopback address may not write there.
function copyButton(text) {
  const node = button('copy', async () => {
    try { await navigator.clipboard.writeText(text); node.textContent = 'copied'; } catch { node.textContent = 'not allowed here'; }
    setTimeout(() => { node.textContent = 'copy'; }, 1600);
  }, 'Copy');
  return node;
}

function table(heads, rows, className = '') {
  const box = element('div', `scroll-x ${className}`), node = element('table'), head = element('tr'), body = element('tbody');
  const right = heads.map((text) => text.startsWith('>')), code = heads.map((text) => text.startsWith('~'));
  heads.forEach((text, n) => { const cell = element('th', right[n] ? 'num' : '', text.replace(/^[>~]/, '')); cell.scope = 'col'; head.append(cell); });
  node.append(element('thead'));
  node.tHead.append(head);
  for (const row of rows) {
    const line = element('tr');
    row.forEach((cell, n) => {
      const place = element('td', right[n] ? 'num' : code[n] ? 'code' : '');
      place.append(cell instanceof Node ? cell : document.createTextNode(cell === null || cell === undefined ? '-' : String(cell)));
      line.append(place);
    });
    body.append(line);
  }
  node.append(body);
  box.append(node);
  return box;
}

function facts(pairs) {
  const list = element('dl');
  for (const [name, value] of pairs) {
    if (value === null || value === undefined || value === '') continue;
    const place = element('dd');
    place.append(value instanceof Node ? value : document.createTextNode(String(value)));
    list.append(element('dt', '', name), place);
  }
  return list;
}

function bullets(lines) {
  const list = element('ul', 'lines');
  for (const line of lines) list.append(element('li', '', line));
  return list;
}

function saveBlob(blob, name) {
  const link = element('a');
  link.href = URL.createObjectURL(blob);
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 2000);
}

const csvCell = (value) => {
  if (value === null || value === undefined || (typeof value === 'number' && Number.isNaN(value))) return '';
  let text = String(value);
  if (typeof value === 'string' && /^[=+@\t\r-]/.test(text)) text = `'${text}`;
  return /[",\n\r]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
};
const csvText = (heads, rows) => [heads, ...rows].map((row) => row.map(csvCell).join(',')).join('\r\n') + '\r\n';

function saveNumbers(tools, name, numbers) { tools.append(button('CSV', () => { const [heads, rows] = numbers(); saveBlob(new Blob([csvText(heads, rows)], { type: 'text/csv' }), `${name}.csv`); }, 'Save its numbers')); }

// Every chart has both: `picture` gives a canvas (or a promise of one), `numbers` gives [heads, rows].
function saveTools(tools, name, picture, numbers) {
  tools.append(button('PNG', async () => {
    const canvas = await picture();
    if (canvas) canvas.toBlob((blob) => saveBlob(blob, `${name}.png`), 'image/png');
  }, 'Save this picture'));
  saveNumbers(tools, name, numbers);
}

// A picture of one or more canvases on the card's own ground, so that it can be read outside of the page.
function onPaper(canvases, width, height, scale = window.devicePixelRatio || 1) {
  const paper = element('canvas');
  paper.width = Math.round(width * scale);
  paper.height = Math.round(height * scale);
  const pen = paper.getContext('2d');
  pen.fillStyle = colorOf('card');
  pen.fillRect(0, 0, paper.width, paper.height);
  for (const canvas of canvases) pen.drawImage(canvas, 0, 0, paper.width, paper.height);
  return paper;
}

function errorCard(error) {
  const { node } = card('This cannot be shown', 'error');
  node.append(element('p', 'bad', error && error.message ? error.message : String(error)));
  return node;
}

// Sections that live: each gets a chance to redraw (theme, size) and to stop (timers) when the page moves on.
const living = { redraws: [], stops: [] };
const onRedraw = (action) => living.redraws.push(action);
const onLeave = (action) => living.stops.push(action);
// What is gone before the page moves on.
function forget(...actions) { for (const list of [living.redraws, living.stops]) for (const action of actions) { const at = list.indexOf(action); if (at >= 0) list.splice(at, 1); } }
function leave() { for (const stop of living.stops.splice(0)) stop(); living.redraws.length = 0; }
function redrawAll() { for (const action of living.redraws) action(); }

// The clock of whoever looks; what is no date stays as it was written.
function momentText(iso) { const moment = new Date(iso); return Number.isNaN(moment.getTime()) ? iso : moment.toLocaleString(undefined, { dateStyle: 'medium', timeStyle: 'short' }); }

function unitText(value, unit) {
  if (value === null || value === undefined || Number.isNaN(value)) return '-';
  if (unit) return valueText(value, unit);
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return String(value);
  return String(Number(value.toPrecision(5)));
}
