// A grid of optimizers and techniques: every cell with its peak, what it saves, and why.
function gridSection(host, id, document_) {
  const one = document_.body, part = card('Peaks', 'grid'), why = element('p', 'read'), code = element('div', 'apply');
  host.append(element('h1', '', document_.title), part.node);
  why.setAttribute('role', 'status');
  why.dataset.idle = 'Choose a cell: why it is so is written here.';
  const tell = (name, cell) => { why.textContent = `${name}: ${cell.why || 'nothing more is known'}`; code.replaceChildren(...(cell.code.length ? [element('code', '', cell.code.join('\n')), copyButton(cell.code.join('\n'))] : [])); };
  const rows = one.optimizers.map((optimizer, r) => [optimizer, ...one.techniques.map((technique, c) => cellNode(one.cells[r][c], `${optimizer}, ${technique}`, tell))]);
  part.node.append(table(['optimizer', ...one.techniques.map((technique) => `>${technique}`)], rows, 'grid-table'), why, code, element('p', 'hint', 'Minus and green saves, plus and red costs, yellow moves the peak by half a percent at most.'));
  saveTools(part.tools, 'grid', () => gridPicture(document_.title, one), () => [['optimizer', ...one.techniques.map((technique) => `${technique} (bytes)`)], one.optimizers.map((optimizer, r) => [optimizer, ...one.cells[r].map((cell) => (cell ? cell.peak_bytes : ''))])]);
  cellBars(host, one);
  measuredCells(host, one);
  for (const [title, lines, id_] of [['What a technique does', one.technique_lines, 'techniques'], ['Into the budget', one.budget_lines, 'into-budget'], ['Not in the table', one.reason_lines, 'reasons'], ['How exact', one.notes, 'exact']]) if (lines.length) { const more = card(title, id_); more.node.append(element('pre', 'lines', lines.join('\n'))); host.append(more.node); }
}

const gridCells = (one) => one.optimizers.flatMap((optimizer, r) => one.techniques.map((technique, c) => ({ optimizer, technique, cell: one.cells[r][c] }))).filter((each) => each.cell);

// What every cell holds at its peak, by category, the smallest first.
function cellBars(host, one) {
  const known_ = gridCells(one).filter(({ cell }) => cell.at_peak.length && cell.peak_bytes !== null).sort((a, b) => a.cell.peak_bytes - b.cell.peak_bytes);
  if (!known_.length) return;
  const part = card('What is alive at the peak of each', 'cells'), legend = element('p', 'legend'), names = Object.keys(CATEGORY_COLORS).filter((name) => known_.some(({ cell }) => cell.at_peak.some((share) => share.name === name)));
  legend.append(...names.map((name) => { const item = element('span'), swatch = element('span', 'swatch block'); swatch.style.color = `var(--${CATEGORY_COLORS[name]})`; swatch.style.opacity = 1; item.append(swatch, name); return item; }));
  part.node.append(legend);
  const order = (share) => { const at = names.indexOf(share.name); return at < 0 ? names.length : at; };
  barRows(part, 'cells', known_.map(({ optimizer, technique, cell }) => ({ name: `${optimizer}, ${technique}`, text: cell.text, parts: [...cell.at_peak].sort((a, b) => order(a) - order(b)).map((share) => ({ name: share.name, value: share.num_bytes, color: CATEGORY_COLORS[share.name] || 'soft' })) })), { heads: ['cell', 'category', 'bytes'] });
  host.append(part.node);
}

// Predicted beside measured, where cells were trained.
function measuredCells(host, one) {
  const trained = gridCells(one).filter(({ cell }) => cell.measured);
  if (!trained.length) return;
  const part = card('Measured here', 'measured'), size = (bytes) => (bytes === null ? 'unknown' : bytesText(bytes)), apart_ = ({ predicted_bytes: a, measured: { tensor_bytes: b } }) => (a === null || b === null ? null : b - a);
  const differs = (cell) => { const by = apart_(cell); return by === null ? 'unknown' : by === 0 ? 'equal' : `${by > 0 ? '+' : '−'}${bytesText(Math.abs(by))}`; };
  part.node.append(element('p', 'hint', "Tensors by torch's own record, the process by the kernel."), table(['optimizer', 'technique', '>predicted', '>measured', '>difference', '>process', '>a step'], trained.map(({ optimizer, technique, cell }) => [optimizer, technique, size(cell.predicted_bytes), size(cell.measured.tensor_bytes), differs(cell), size(cell.measured.needed_bytes), cell.measured.step_seconds === null ? 'unknown' : secondsText(cell.measured.step_seconds)])));
  saveNumbers(part.tools, 'measured', () => [['optimizer', 'technique', 'predicted tensors (bytes)', 'measured tensors (bytes)', 'process (bytes)', 'a step (seconds)'], trained.map(({ optimizer, technique, cell }) => [optimizer, technique, cell.predicted_bytes, cell.measured.tensor_bytes, cell.measured.needed_bytes, cell.measured.step_seconds])]);
  host.append(part.node);
}

function cellNode(cell, name, tell) {
  if (!cell) return '-';
  const node = button('', () => tell(name, cell), cell.why);
  node.className = `cell v-${String(cell.value).replace(/ /g, '-')}`;
  node.append(cell.text);
  if (savedText(cell)) node.append(element('small', '', savedText(cell)));
  return node;
}

const savedText = (cell) => (cell.saved_bytes && (cell.value === 'saves' || cell.value === 'costs') ? `${cell.value === 'saves' ? '−' : '+'}${bytesText(Math.abs(cell.saved_bytes))}` : '');

// The table of peaks on a canvas, each cell in the colour of its verdict.
function gridPicture(title, one) {
  const paper = element('canvas'), ratio = 2, left = 190, cellWide = 160, cellTall = 44, top = 78, wide = left + one.techniques.length * cellWide + 16, tall = top + one.optimizers.length * cellTall + 14;
  paper.width = wide * ratio; paper.height = tall * ratio;
  const pen = paper.getContext('2d'), font = 'system-ui, "DejaVu Sans", sans-serif';
  pen.scale(ratio, ratio);
  pen.fillStyle = colorOf('card'); pen.fillRect(0, 0, wide, tall);
  pen.textBaseline = 'middle'; pen.fillStyle = colorOf('ink'); pen.font = `600 16px ${font}`; pen.fillText(fitted(pen, title, wide - 32), 16, 22);
  pen.font = `13px ${font}`; pen.fillStyle = colorOf('soft');
  pen.textAlign = 'right';
  one.techniques.forEach((technique, c) => pen.fillText(fitted(pen, technique, cellWide - 16), left + (c + 1) * cellWide - 8, 58));
  one.optimizers.forEach((optimizer, r) => {
    const middle = top + r * cellTall + cellTall / 2;
    pen.textAlign = 'left'; pen.fillStyle = colorOf('ink'); pen.fillText(fitted(pen, optimizer, left - 26), 16, middle);
    pen.textAlign = 'right';
    one.cells[r].forEach((cell, c) => {
      const x = left + c * cellWide, color = { saves: 'good', costs: 'bad', 'useless here': 'warn' }[cell && cell.value];
      if (color) { pen.fillStyle = colorOf(color); pen.globalAlpha = 0.18; pen.fillRect(x + 2, top + r * cellTall + 2, cellWide - 4, cellTall - 4); pen.globalAlpha = 1; }
      const lines = cell ? [cell.text, ...(savedText(cell) ? [savedText(cell)] : [])] : ['-'];
      lines.forEach((text, n) => { pen.fillStyle = colorOf(n ? 'soft' : 'ink'); pen.fillText(fitted(pen, text, cellWide - 16), x + cellWide - 8, middle + (lines.length === 1 ? 0 : n ? 9 : -9)); });
    });
  });
  return paper;
}
