// One trial in full, and pinned trials beside each other: parameters with what differs, figures, and their timelines.
function trialCard(part, { study, id, view, rowOf, togglePin, onHover, onPick }) {
  const inner = element('div');
  part.node.append(inner);
  let shown = 0, plot = null;
  return {
    hover(row) { if (plot) plot.focus(row === null ? null : study().number[row]); },
    async show(number) {
      const ticket = ++shown, numbers = [...new Set([...(number === null ? [] : [number]), ...view.pins])].filter((each) => rowOf(each) !== undefined);
      part.node.hidden = !numbers.length;
      part.tools.replaceChildren();
      if (plot) plot.destroy();
      plot = null;
      if (!numbers.length) { inner.replaceChildren(); return; }
      part.head.textContent = numbers.length > 1 ? `Trials ${numbers.join(', ')}` : `Trial ${numbers[0]}`;
      inner.replaceChildren(compared(study(), numbers.map(rowOf), { view, togglePin }));
      const timelines = element('div', 'chart'), notes = element('div');
      inner.append(notes, timelines);
      const answers = await Promise.all(numbers.map((each) => source.trial(id, each).catch((error) => ({ notes: [error.message] }))));
      if (ticket !== shown) return;
      answers.forEach((facts_, n) => fillTrial(notes, facts_, numbers[n], numbers.length > 1));
      const runs = answers.map((facts_, n) => ({ run: facts_ && facts_.run, number: numbers[n] })).filter((each) => each.run);
      if (runs.length) {
        const made = await trialTimelines(timelines, runs, () => ticket === shown, { onFocus: (each) => onHover(each === null ? null : rowOf(each) ?? null), onPick });
        if (!made) return;
        if (ticket !== shown) { made.destroy(); return; }
        plot = made;
        saveTools(part.tools, 'timelines', () => plot.picture(), () => plot.numbers());
      } else timelines.append(element('p', 'hint', source.isServed ? 'There is no run record of this trial.' : 'The run of this trial is not in the file; `memfit serve` shows it.'));
    },
  };
}

function fillTrial(host, facts_, number, isOneOfMany) {
  if (!facts_) return;
  const prefix = isOneOfMany ? `Trial ${number}: ` : '';
  if (facts_.outcome && facts_.outcome.message) host.append(element('p', 'hint', `${prefix}${facts_.outcome.kind}: ${facts_.outcome.message}`));
  for (const note of facts_.notes || []) host.append(element('p', 'hint', prefix + note));
  if (facts_.run) { const link = element('a', '', `${prefix}open the run: ${facts_.run}`); link.href = addressOf('run', facts_.run); const line = element('p', 'hint'); line.append(link); host.append(line); }
}

function compared(study, rows, { view, togglePin }) {
  const heads = ['', ...rows.map((row) => `>trial ${study.number[row]}`)];
  const lines = study.columns.map((column) => {
    const texts = rows.map((row) => cellText(column, row)), differs = new Set(texts).size > 1;
    return [column.label, ...texts.map((text) => element('span', differs ? 'differs' : '', text))];
  });
  const pins = rows.map((row) => { const number = study.number[row]; return button(view.pins.includes(number) ? 'unpin' : 'pin to compare', () => togglePin(number)); });
  return table(heads, [...lines, ['', ...pins]], 'narrow');
}

// The job's memory over time of one or more runs, laid over each other from their starts.
async function trialTimelines(host, runs, isWanted, hands) {
  const found = [];
  for (const { run, number } of runs) {
    try { found.push({ number, body: (await source.document(run)).body }); } catch (error) { host.append(element('p', 'hint', `trial ${number}: ${error.message}`)); }
  }
  if (!isWanted() || !found.length) return null;
  const lines = found.map(({ number, body }, n) => { const [x, y] = treeLine(body.run); return { name: `trial ${number}`, key: number, x, y, color: () => colorOf(SERIES_COLORS[n % SERIES_COLORS.length]), swatch: `var(--${SERIES_COLORS[n % SERIES_COLORS.length]})`, dash: n % 2 ? [6, 3] : undefined, fill: found.length === 1 ? () => `${colorOf('p3')}22` : undefined }; });
  const legend = element('p', 'legend');
  lines.forEach((line) => { const item = element('span'), swatch = element('span', `swatch${line.dash ? ' dashed' : ''}`); swatch.style.color = line.swatch; item.append(swatch, `${line.name}, peak ${bytesText(Math.max(...line.y))}`); legend.append(item); });
  const stage = element('div');
  host.append(element('h3', '', 'Memory over time'), legend, stage);
  return curvePlot(stage, lines, { ...hands, labelX: 'seconds', unitX: 'seconds', labelY: '', unitY: 'bytes', height: 240, rangeY: (_, low, high) => [0, high * 1.08 || 1] });
}

// Highest value of each row of a run's own curve.
function treeLine(run) {
  const curve = run.curves.find((each) => each.role === 'tree');
  if (!curve || !curve.levels.length) return [[0], [0]];
  const level = unpackLevel(curve.levels.find((each) => each.time_us.count <= 4000) || curve.levels[curve.levels.length - 1]);
  return [Array.from(level.time), Array.from(level.high)];
}
