// What drives memory in a study: the sentences of `explain` with their intervals, and what each rests on.
const VERDICTS = { found: 'found', note: 'worth knowing', 'ruled out': 'does not matter', 'cannot tell': 'cannot tell' };

function fillFindings(part, study) {
  const { findings } = study.body;
  for (const old of part.node.querySelectorAll('.finding, .hint, .chart')) old.remove();
  const reason = study.body.findings_reason || (findings && !findings.findings.length && !findings.importances.length ? findings.notes.join('; ') : '');
  part.node.hidden = !findings && !reason;
  if (part.node.hidden) return;
  if (reason) { part.node.append(element('p', 'hint', reason)); return; }
  const order = Object.keys(VERDICTS), shown = [...findings.findings].sort((a, b) => order.indexOf(a.verdict) - order.indexOf(b.verdict)), largest = largestEffect(shown);
  part.tools.replaceChildren();
  saveTools(part.tools, 'findings', () => findingsPicture(part.head.textContent, shown), () => [['verdict', 'sentence', 'effect', 'low', 'high', 'unit'], shown.map((one) => [one.verdict, one.sentence, ...(one.effect ? [one.effect.value, one.effect.low, one.effect.high, one.effect.unit] : ['', '', '', ''])])]);
  const span = findings.low_bytes ? `, from ${bytesText(findings.low_bytes)} to ${bytesText(findings.high_bytes)}` : '';
  part.node.append(element('p', 'hint', `${findings.quantity}, ${findings.num_trials} trials${span}; at most ${(findings.error_rate * 100).toFixed(0)} in 100 studies without any effect show a finding.${shown.some(hasBar) ? ` Bars: the change with its 95 % interval, from −${bytesText(largest)} to +${bytesText(largest)}; the line in the middle is no change.` : ''}`));
  part.node.append(...shown.map((one) => findingLine(one, largest)));
  const important = findings.importances.filter((each) => each.share > 0).map((each) => `${each.name} ${valueText(each.share, 'ratio')}`);
  for (const note of [...(important.length ? [`Importance for being among the largest quarter (PED-ANOVA): ${important.join(', ')}`] : []), ...findings.notes]) part.node.append(element('p', 'hint', note));
}

// A sentence with its picture; what it rests on opens by key or click.
function findingLine(one, largest) {
  const line = element('div', `finding v-${one.verdict.replace(/ /g, '-')}`), words = element('div', 'words');
  if (one.evidence && one.evidence.length) {
    const details = element('details');
    details.append(element('summary', '', one.sentence), bullets(one.evidence));
    words.append(details);
  } else words.append(one.sentence);
  line.append(element('span', 'verdict', VERDICTS[one.verdict]), words);
  if (hasBar(one)) line.append(effectBar(one.effect, largest));
  return line;
}

// Only bytes are drawn: bytes per byte have no scale in common with them.
const hasBar = ({ effect }) => Boolean(effect) && effect.unit === 'bytes' && known(effect);
const largestEffect = (findings) => Math.max(1, ...findings.filter(hasBar).flatMap(({ effect }) => [effect.value, effect.low, effect.high].map((value) => Math.abs(value || 0))));

// The sentences with their effects on a canvas of their own.
function findingsPicture(title, findings) {
  const paper = element('canvas'), pen = paper.getContext('2d'), ratio = 2, wide = 1000, words = 640, largest = largestEffect(findings), font = '13px system-ui, "DejaVu Sans", sans-serif';
  pen.font = font;
  const rows = findings.map((one) => ({ one, lines: linesOf(pen, one.sentence, words - 30) })), tall = 44 + rows.reduce((sum, row) => sum + row.lines.length * 18 + 12, 0);
  paper.width = wide * ratio; paper.height = tall * ratio;
  pen.scale(ratio, ratio);
  pen.fillStyle = colorOf('card'); pen.fillRect(0, 0, wide, tall);
  pen.fillStyle = colorOf('ink'); pen.textBaseline = 'middle'; pen.font = `600 ${font.replace('13px', '16px')}`; pen.fillText(title, 16, 22);
  pen.font = font;
  let y = 48;
  for (const { one, lines } of rows) {
    pen.fillStyle = colorOf('ink');
    lines.forEach((line, n) => pen.fillText(line, 16, y + 9 + 18 * n));
    if (hasBar(one)) {
      const at = (value) => words + 190 + (150 * value) / largest, middle = y + 9 * lines.length;
      pen.fillStyle = colorOf('grid'); pen.fillRect(words + 40, middle - 7, 300, 14);
      pen.fillStyle = colorOf('soft'); pen.fillRect(at(0) - 0.5, middle - 9, 1, 18);
      pen.fillStyle = colorOf('job'); pen.globalAlpha = 0.6; pen.fillRect(at(one.effect.low ?? one.effect.value), middle - 2, at(one.effect.high ?? one.effect.value) - at(one.effect.low ?? one.effect.value), 4); pen.globalAlpha = 1;
      pen.beginPath(); pen.arc(at(one.effect.value), middle, 5, 0, 7); pen.fill();
    }
    y += lines.length * 18 + 12;
  }
  return paper;
}

function linesOf(pen, text, width) {
  const lines = [''];
  for (const word of text.split(' ')) { const longer = `${lines[lines.length - 1]} ${word}`.trim(); if (pen.measureText(longer).width <= width || !lines[lines.length - 1]) lines[lines.length - 1] = longer; else lines.push(word); }
  return lines;
}

// The effect with its interval, on one scale for all findings.
function effectBar(effect, largest) {
  const box = element('span', 'effect'), place = (value) => 50 + (50 * value) / largest;
  const line = element('span', 'interval'), dot = element('span', 'dot');
  const low = effect.low ?? effect.value, high = effect.high ?? effect.value;
  line.style.left = `${place(low)}%`; line.style.width = `${Math.max(place(high) - place(low), 0.5)}%`;
  dot.style.left = `${place(effect.value)}%`;
  box.title = `${unitText(effect.value, effect.unit)} (95 %: ${unitText(low, effect.unit)} to ${unitText(high, effect.unit)})`;
  box.append(element('span', 'zero'), line, dot);
  return box;
}
