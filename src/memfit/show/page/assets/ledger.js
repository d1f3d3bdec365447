// The peak as lines that add up to it; tensors open into the modules that hold them.
const LEDGER_COLORS = ['job', 'backward', 'update', 'used', 'exact', 'forward', 'p1', 'p2', 'data'];

function makeLedgers(run) {
  if (!run.ledgers.length) return;
  byId('ledger-card').hidden = false;
  for (const ledger of run.ledgers) byId('ledgers').append(ledgerNode(ledger));
}

function ledgerNode(ledger) {
  const node = element('div', 'ledger'), owner = ledger.pid === null ? '' : `process ${ledger.pid}, `;
  const place = `${owner}${ledger.device === 'host' ? '' : `${ledger.device}, `}${ledger.moment}`;
  const remarks = [`${place}: ${bytesText(ledger.peak_bytes)}, of which ${valueText(ledger.explained_ratio, 'ratio')} carries a name.`];
  if (ledger.untouched_bytes) remarks.push(`Not in memory, so not counted: ${bytesText(ledger.untouched_bytes)} of reserved heap and tensors.`);
  if (ledger.note) remarks.push(ledger.note);
  node.append(element('p', 'hint', remarks.join(' ')));
  const stack = element('div', 'stack');
  stack.setAttribute('aria-hidden', 'true');
  node.append(stack);
  ledger.bars.forEach((bar, number) => {
    const grey = { unexplained: 'line', imports: 'data' }[bar.kind];
    const color = grey ? `var(--${grey})` : `var(--${LEDGER_COLORS[number % LEDGER_COLORS.length]})`;
    const part = element('span');
    part.style.flexGrow = bar.num_bytes;
    part.style.background = color;
    part.title = `${barName(bar)}: ${bytesText(bar.num_bytes)}, ${valueText(bar.share, 'ratio')}`;
    stack.append(part);
    node.append(bar.parts.length ? openLine(bar, color) : lineNode(bar, color, 1));
  });
  const last = lineNode({ kind: '', name: 'adds up to', num_bytes: ledger.peak_bytes, share: 1, source: 'measured' }, 'transparent', 0);
  last.classList.add('total');
  node.append(last);
  return node;
}

const barName = (bar) => (!bar.name || bar.name === bar.kind ? bar.kind : ['tensors', 'module', ''].includes(bar.kind) ? bar.name : `${bar.kind}: ${bar.name}`);

function lineNode(bar, color, scale) {
  const line = element('div', 'line'), name = element('span', 'name', barName(bar)), track = element('span', 'track'), fill = element('span');
  if (bar.source && bar.source !== 'measured') name.append(element('span', 'mark', bar.source));
  if (bar.method) line.title = bar.method;
  fill.style.width = `${Math.min(Math.max(bar.share * 100 * scale, 0), 100)}%`;
  fill.style.background = color;
  track.append(fill);
  line.append(name, element('span', 'num', bytesText(bar.num_bytes)), element('span', 'num', valueText(bar.share, 'ratio')), scale ? track : element('span'));
  return line;
}

function openLine(bar, color) {
  const details = element('details'), summary = element('summary'), inner = element('div', 'inner');
  summary.append(lineNode(bar, color, 1));
  details.append(summary, inner);
  details.addEventListener('toggle', () => {
    if (!details.open || inner.childElementCount) return;
    const largest = Math.max(...bar.parts.map((part) => part.share), 1e-9);
    for (const part of bar.parts) inner.append(lineNode(part, color, 0.92 / largest));
  });
  return details;
}
