// Bars of bytes on one scale: rows of parts with bounds and limits, on the page, as a picture and as numbers.
// A row is {name, text, parts: [{name, value, color, hatched}], low, high, marks: [{value, dashed, title}], title, meaning}.
const rowEnd = (row) => Math.max(row.parts.reduce((sum, each) => sum + each.value, 0), row.high || 0);

// The limit is in the picture where that leaves the bars readable.
function barScale(rows, limit, most = 4) {
  const end = Math.max(...rows.map(rowEnd), 1), marks = rows.flatMap((row) => row.marks || []).map((mark) => mark.value).filter((value) => value < end * most);
  return limit && limit < end * most ? Math.max(limit, end, ...marks) * 1.02 : Math.max(end, ...marks) * 1.04;
}

function barRows(part, name, rows, { scale = barScale(rows, null), heads = ['bar', 'part', 'bytes'], numbers = null } = {}) {
  for (const row of rows) {
    const line = element('div', 'budget-row'), track = element('div', 'budget-track');
    for (const each of row.parts) {
      const bar = element('span', `bar-part${each.hatched ? ' hatched' : ''}`);
      bar.style.width = `${(100 * each.value) / scale}%`;
      bar.style.setProperty('--bar', `var(--${each.color})`);
      bar.title = `${each.name}: ${bytesText(each.value)}`;
      if (row.parts.length > 1 && row.named && each.value > scale * 0.12) bar.append(element('span', `bar-name on-${each.color}`, `${each.name} ${bytesText(each.value)}`));
      track.append(bar);
    }
    if (hasBounds(row)) { const whisker = element('span', 'whisker'); whisker.style.left = `${(100 * row.low) / scale}%`; whisker.style.width = `${(100 * (row.high - row.low)) / scale}%`; whisker.title = `between ${bytesText(row.low)} and ${bytesText(row.high)}`; track.append(whisker); }
    for (const each of row.marks || []) if (each.value <= scale) { const mark = element('span', `room-mark${each.dashed ? ' budget-mark' : ''}`); mark.style.left = `${(100 * each.value) / scale}%`; mark.title = each.title; track.append(mark); }
    line.append(element('span', 'budget-name', row.name), track, element('span', 'num', row.text));
    if (row.title) line.title = row.title;
    part.node.append(line);
    if (row.meaning) part.node.append(element('p', 'hint level-meaning', row.meaning));
  }
  saveTools(part.tools, name, () => barsPicture(part.head.textContent, rows, scale), numbers || (() => [heads, rows.flatMap((row) => row.parts.map((each) => [row.name, each.name, each.value]))]));
}

const hasBounds = (row) => row.high && row.low !== null && row.low !== undefined && row.high > row.low;

// The same bars on a canvas of their own: what is on the page is no picture that could be saved.
function barsPicture(title, rows, scale) {
  const paper = element('canvas'), ratio = 2, left = 250, right = 230, wide = 1000, rowHeight = 34, top = 44, track = wide - left - right;
  paper.width = wide * ratio;
  paper.height = (top + rows.length * rowHeight + 14) * ratio;
  const pen = paper.getContext('2d'), fitted = (text, room) => { let cut = text; while (cut.length > 4 && pen.measureText(cut).width > room) cut = `${cut.slice(0, -2)}…`; return cut; };
  pen.scale(ratio, ratio);
  pen.fillStyle = colorOf('card');
  pen.fillRect(0, 0, wide, paper.height);
  pen.textBaseline = 'middle';
  pen.fillStyle = colorOf('ink');
  pen.font = '600 16px system-ui, "DejaVu Sans", sans-serif';
  pen.fillText(fitted(title, wide - 32), 16, 22);
  pen.font = '13px system-ui, "DejaVu Sans", sans-serif';
  rows.forEach((row, n) => {
    const y = top + n * rowHeight, middle = y + rowHeight / 2, at = (value) => left + (track * Math.min(value, scale)) / scale;
    pen.fillStyle = colorOf('grid');
    pen.fillRect(left, y + 5, track, rowHeight - 10);
    let begin = 0;
    for (const each of row.parts) { pen.fillStyle = colorOf(each.color); pen.globalAlpha = each.hatched ? 0.75 : 1; pen.fillRect(at(begin), y + 5, Math.max(at(begin + each.value) - at(begin) - 0.5, 0.5), rowHeight - 10); pen.globalAlpha = 1; begin += each.value; }
    if (hasBounds(row)) { pen.fillStyle = colorOf('ink'); pen.globalAlpha = 0.75; pen.fillRect(at(row.low), middle - 2, at(row.high) - at(row.low), 4); pen.globalAlpha = 1; }
    for (const mark of row.marks || []) if (mark.value <= scale) { pen.strokeStyle = colorOf('limit'); pen.lineWidth = 2.5; pen.setLineDash(mark.dashed ? [5, 3] : []); pen.beginPath(); pen.moveTo(at(mark.value), y + 1); pen.lineTo(at(mark.value), y + rowHeight - 1); pen.stroke(); pen.setLineDash([]); }
    pen.fillStyle = colorOf('ink');
    pen.textAlign = 'left';
    pen.fillText(fitted(row.name, left - 30), 16, middle);
    pen.textAlign = 'right';
    pen.fillText(fitted(row.text, right - 24), wide - 14, middle);
    pen.textAlign = 'left';
  });
  return paper;
}
