// The exact peak of every step, or group of short steps, and of its phases, over the number of the (last) step.
function makeSteps(run) {
  const steps = readSteps(run.steps);
  if (!steps.num_steps) return null;
  byId('steps-card').hidden = false;
  const column = (name, color, title, width) => ({ name: title, color, visible: true, width, levels: [{ time: steps.step, low: steps[name], high: steps[name] }] });
  const series = [
    ...PHASES.map((phase) => column(`${phase}_peak_bytes`, phase, phase, 1.4)),
    column('peak_bytes', 'exact', steps.largest_group > 1 ? 'whole step or group' : 'whole step', 4),
  ].filter((each) => each.levels[0].high.some((value) => !Number.isNaN(value)));
  for (const each of series) dropMissing(each);
  const first = steps.step[0], last = steps.step[steps.step.length - 1];
  const chart = new Chart(byId('steps'), {
    range: [first, Math.max(last, first + 1)], whole: true, smallest: 4, series: () => series,
    onPoint: (value) => { byId('steps-read').textContent = value === null ? '' : stepText(steps, Math.round(value)); },
  });
  for (const each of series) toggle(byId('step-toggles'), each, () => chart.draw());
  byId('steps-fit').addEventListener('change', (event) => { chart.fit = event.target.checked; chart.draw(); });
  byId('steps').setAttribute('aria-label', 'Exact peak of every step and phase');
  const grouped = steps.largest_group > 1;
  const note = steps.steps_per_row > 1
    ? `Steps: ${steps.words}; of every ${steps.steps_per_row} consecutive ${grouped ? 'rows' : 'ones'} the one with the highest peak is drawn.`
    : `Steps: ${steps.words}.`;
  const groups = grouped ? ` Short steps share one exact peak, up to ${steps.largest_group} of them.` : '';
  byId('steps-note').textContent = `${note}${groups} The kernel's high-water mark, reset at every boundary: no sampling, nothing missed.`;
  const rows = run.phases.map((row) => [row.phase, figureNode(row.median_peak, '-'), figureNode(row.highest_peak, '-'), figureNode(row.median_seconds, '-')]);
  byId('phase-table').replaceChildren(tableNode(['phase', '>median peak', '>highest peak', '>median time'], rows));
  return chart;
}

// A phase that did not occur in a step is a gap in knowledge, not a zero: its row is left out of the curve.
function dropMissing(series) {
  const level = series.levels[0], keep = [];
  for (let i = 0; i < level.high.length; i++) if (!Number.isNaN(level.high[i])) keep.push(i);
  const pick = (values) => Float64Array.from(keep, (i) => values[i]);
  series.levels = [{ time: pick(level.time), low: pick(level.low), high: pick(level.high) }];
}

function stepText(steps, number) {
  const row = Math.min(Math.max(upperIndex(steps.step, number - 1), 0), steps.step.length - 1), size = steps.group_size[row], parts = [stepsText(size > 1 ? steps.step[row] - size + 1 : null, steps.step[row])];
  if (!Number.isNaN(steps.peak_bytes[row])) parts.push(`peak ${bytesText(steps.peak_bytes[row])}`);
  for (const phase of PHASES) {
    const peak = steps[`${phase}_peak_bytes`][row];
    if (!Number.isNaN(peak)) parts.push(`${phase} ${bytesText(peak)}`);
  }
  parts.push(`${size > 1 ? 'together ' : ''}took ${secondsText(steps.end[row] - steps.begin[row])}`);
  return parts.join('  ·  ');
}
