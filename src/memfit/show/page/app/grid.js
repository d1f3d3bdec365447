// A grid of optimizers and techniques: every cell with its peak, what it saves, and why.
function gridSection(host, id, document_) {
  const one = document_.body, part = card('Peaks', 'grid'), why = element('p', 'read');
  host.append(element('h1', '', document_.title), part.node);
  why.setAttribute('role', 'status');
  const rows = one.optimizers.map((optimizer, r) => [optimizer, ...one.techniques.map((technique, c) => cellNode(one.cells[r][c], `${optimizer}, ${technique}`, why))]);
  part.node.append(table(['optimizer', ...one.techniques.map((technique) => `>${technique}`)], rows, 'grid-table'), why, element('p', 'hint', 'Minus and green saves, plus and red costs, yellow leaves the peak where it was; choose a cell for the reason.'));
  part.tools.append(button('CSV', () => saveBlob(new Blob([csvText(['optimizer', ...one.techniques.map((technique) => `${technique} (bytes)`)], one.optimizers.map((optimizer, r) => [optimizer, ...one.cells[r].map((cell) => (cell && cell.peak ? cell.peak.value : ''))]))], { type: 'text/csv' }), 'grid.csv')));
  for (const [title, lines, id_] of [['What a technique does', one.technique_lines, 'techniques'], ['Into the budget', one.budget_lines, 'into-budget'], ['Not in the table', one.reason_lines, 'reasons'], ['How exact', one.notes, 'exact']]) if (lines.length) { const more = card(title, id_); more.node.append(bullets(lines)); host.append(more.node); }
}

function cellNode(cell, name, why) {
  if (!cell) return '-';
  const node = button('', () => { why.textContent = `${name}: ${cell.why || 'nothing more is known'}`; }, cell.why);
  node.className = `cell v-${String(cell.value).replace(/ /g, '-')}`;
  node.append(cell.text);
  if (cell.saved_bytes && (cell.value === 'saves' || cell.value === 'costs')) node.append(element('small', '', `${cell.value === 'saves' ? '−' : '+'}${bytesText(Math.abs(cell.saved_bytes))}`));
  return node;
}
