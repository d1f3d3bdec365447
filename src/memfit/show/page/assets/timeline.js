// The job over time: tree, processes, phases as bands, exact step peaks as dots, the limit, and a second run laid over it.
const PHASES = ['data', 'forward', 'backward', 'update'];
const MAX_BANDS_PER_PIXEL = 0.25;
const ROLES = {
  tree: { color: 'job', width: 1.6, fill: true, visible: true },
  imports: { color: 'data', width: 0.8, fill: 0.45, visible: true },
  'upper bound': { color: 'p5', dash: [2, 3], width: 1.1, visible: true },
  predicted: { color: 'update', dash: [5, 3], width: 1.4, visible: true },
  used: { color: 'used', dash: [6, 4], visible: true },
  background: { color: 'background', visible: true },
  device: { color: 'p3', visible: true },
};

function seriesOf(curve, number, other) {
  const style = ROLES[curve.role] || { color: `p${number % 6}`, width: 1.1, visible: number < 4 };
  const levels = curve.levels.map(unpackLevel);
  if (!other) return { name: curve.name, role: curve.role, levels, ...style };
  return { name: `B: ${curve.name}`, role: curve.role, levels, visible: true, color: 'other', dash: [6, 3], width: 1.4 };
}

// "step 48", or "steps 41 to 48" for a group of short steps that share one peak.
function stepsText(first, last) {
  if (last === null) return '';
  return first === null || first === undefined ? `step ${last}` : `steps ${first} to ${last}`;
}

function readSteps(steps) {
  const table = {};
  for (const [name, value] of Object.entries(steps)) table[name] = value && value.base64 !== undefined ? unpack(value) : value;
  for (const name of ['begin', 'forward', 'backward', 'update', 'end']) table[name] = table[`${name}_us`].map((us) => us / 1e6);
  return table;
}

function phaseEdges(steps, row) {
  const edges = [steps.begin[row], steps.forward[row], steps.backward[row], steps.update[row], steps.end[row]], parts = [];
  if (edges.slice(1, 4).every(Number.isNaN) && Number.isNaN(steps.data_peak_bytes[row])) return parts; // measured as a whole
  for (let n = 0; n < 4; n++) {
    if (Number.isNaN(edges[n])) continue;
    const end = edges.slice(n + 1).find((edge) => !Number.isNaN(edge));
    parts.push({ phase: PHASES[n], begin: edges[n], end, peak: steps[`${PHASES[n]}_peak_bytes`][row] });
  }
  return parts;
}

function stepsInView(steps, range) {
  const begin = upperIndex(steps.end, range[0]);
  let end = begin;
  while (end < steps.end.length && steps.begin[end] <= range[1]) end++;
  return [begin, end];
}

function phaseAt(steps, seconds) {
  const row = upperIndex(steps.end, seconds);
  if (row >= steps.end.length || steps.begin[row] > seconds) return null;
  const part = phaseEdges(steps, row).filter((each) => each.begin <= seconds).pop();
  const first = steps.group_size[row] > 1 ? steps.step[row] - steps.group_size[row] + 1 : null;
  return { first, step: steps.step[row], phase: part ? part.phase : '', peak: part ? part.peak : NaN };
}

function makeTimeline(run, other) {
  const steps = readSteps(run.steps), alone = run.processes.length <= 1;
  let number = 0;
  const series = run.curves.filter((curve) => ['tree', 'imports', 'upper bound', 'process', 'predicted'].includes(curve.role))
    .map((curve) => seriesOf(curve, curve.role === 'process' ? number++ : 0));
  if (other) series.push(...other.curves.filter((curve) => curve.role === 'tree').map((curve) => seriesOf(curve, 0, true)));
  const dots = { name: steps.steps_per_row > 1 ? `highest exact step peak of every ${steps.steps_per_row}` : steps.largest_group > 1 ? 'exact peak of each group of steps' : 'exact peak of each step', color: 'exact', swatch: 'dot', visible: alone };
  const bands = { name: 'phases', color: 'backward', swatch: 'block', visible: true };
  const end = Math.max(run.headline.duration.value, other ? other.headline.duration.value : 0, 1e-3);
  const limit = run.headline.limit_bytes;
  const chart = new Chart(byId('timeline'), {
    range: [0, end],
    series: () => series,
    levels: (range) => {
      const { peak, peak_seconds: at } = run.headline, values = [];
      if (known(peak) && at !== null && at >= range[0] && at <= range[1]) values.push(peak.value);
      if (limit !== null && known(peak) && limit < peak.value * 1.7) values.push(limit);
      return values;
    },
    before: (self, pen) => { if (bands.visible) { drawBands(self, pen, steps); drawSpans(self, pen, run.spans); } },
    after: (self, pen) => {
      if (dots.visible) drawDots(self, pen, steps);
      if (limit !== null) drawLimit(self, pen, limit);
      drawPeak(self, pen, run.headline);
    },
    onPoint: (seconds) => { byId('timeline-read').textContent = seconds === null ? '' : readOut(chart, series, steps, seconds); },
    onZoom: (range) => fillPhaseLog(steps, range),
  });
  const redraw = () => chart.draw();
  const toggles = byId('toggles');
  for (const each of series) toggle(toggles, each, redraw);
  if (steps.num_steps) {
    toggle(toggles, bands, redraw);
    for (const phase of PHASES) toggles.append(key(phase));
    if (alone) toggle(toggles, dots, redraw);
  }
  byId('timeline').setAttribute('aria-label', `Memory over time; ${known(run.headline.peak) ? `peak ${bytesText(run.headline.peak.value)}` : 'peak unknown'}`);
  byId('fit').addEventListener('change', (event) => { chart.fit = event.target.checked; chart.draw(); });
  byId('zoom-reset').addEventListener('click', () => chart.zoom(chart.full));
  byId('zoom-peak').addEventListener('click', () => {
    const at = run.headline.peak_seconds;
    if (at === null) return;
    const span = known(steps.median_seconds) ? steps.median_seconds.value * 6 : end / 50;
    chart.zoom([at - span / 2, at + span / 2]);
  });
  fillPhaseLog(steps, chart.range);
  return chart;
}

function drawBands(chart, pen, steps) {
  const [begin, end] = stepsInView(steps, chart.range);
  if (end - begin > chart.plotWidth * MAX_BANDS_PER_PIXEL * 0.5) return;
  pen.globalAlpha = Number(colorOf('band')) || 0.16;
  for (let row = begin; row < end; row++) {
    for (const part of phaseEdges(steps, row)) {
      pen.fillStyle = colorOf(part.phase);
      pen.fillRect(chart.x(part.begin), chart.top, Math.max(chart.x(part.end) - chart.x(part.begin), 0.5), chart.height - chart.top - chart.bottom);
    }
  }
  pen.globalAlpha = 1;
  if (end - begin < 14) nameBands(chart, pen, steps, begin, end);
}

// Evaluation and named phases: a strip along the top, since they lie in no step.
function drawSpans(chart, pen, spans) {
  pen.textAlign = 'left'; pen.textBaseline = 'top';
  for (const span of spans) {
    if (span.end_seconds < chart.range[0] || span.begin_seconds > chart.range[1]) continue;
    const from = Math.max(chart.x(span.begin_seconds), chart.x(chart.range[0])), to = Math.min(chart.x(span.end_seconds), chart.x(chart.range[1]));
    pen.fillStyle = colorOf('update'); pen.globalAlpha = 0.35;
    pen.fillRect(from, chart.top, Math.max(to - from, 1), 12);
    pen.globalAlpha = 1; pen.fillStyle = colorOf('soft');
    if (pen.measureText(span.name).width + 6 < to - from) pen.fillText(span.name, from + 3, chart.top + 1);
  }
}

function nameBands(chart, pen, steps, begin, end) {
  pen.fillStyle = colorOf('soft'); pen.textAlign = 'center'; pen.textBaseline = 'bottom';
  for (let row = begin; row < end; row++) {
    for (const part of phaseEdges(steps, row)) {
      const width = chart.x(part.end) - chart.x(part.begin);
      if (pen.measureText(part.phase).width + 6 < width) pen.fillText(part.phase, (chart.x(part.begin) + chart.x(part.end)) / 2, chart.height - chart.bottom - 5);
    }
  }
}

function drawDots(chart, pen, steps) {
  const [begin, end] = stepsInView(steps, chart.range), radius = end - begin > 200 ? 1.3 : 3;
  pen.fillStyle = colorOf('exact');
  for (let row = begin; row < end; row++) {
    if (Number.isNaN(steps.peak_bytes[row])) continue;
    const highest = phaseEdges(steps, row).reduce((best, part) => (part.peak > (best ? best.peak : -1) ? part : best), null);
    const at = highest ? highest.begin + (highest.end - highest.begin) * 0.03 : steps.end[row];
    pen.beginPath(); pen.arc(chart.x(at), chart.y(steps.peak_bytes[row]), radius, 0, 7); pen.fill();
  }
}

function drawLimit(chart, pen, limit) {
  const y = chart.y(limit);
  if (limit > chart.ceiling) { pen.fillStyle = colorOf('limit'); pen.textAlign = 'right'; pen.textBaseline = 'top'; pen.fillText(`limit ${bytesText(limit)}, above this picture`, chart.width - chart.right - 4, 0); return; }
  pen.strokeStyle = colorOf('limit'); pen.setLineDash([8, 4]); pen.lineWidth = 1.4;
  pen.beginPath(); pen.moveTo(chart.left, y); pen.lineTo(chart.width - chart.right, y); pen.stroke(); pen.setLineDash([]);
  pen.fillStyle = colorOf('limit'); pen.textAlign = 'left'; pen.textBaseline = 'bottom';
  pen.fillText(`limit ${bytesText(limit)}`, chart.left + 4, y - 3);
}

function drawPeak(chart, pen, headline) {
  const at = headline.peak_seconds;
  if (!known(headline.peak) || at === null || at < chart.range[0] || at > chart.range[1]) return;
  const x = chart.x(at), y = chart.y(headline.peak.value);
  pen.strokeStyle = colorOf('ink'); pen.lineWidth = 1.5;
  pen.beginPath(); pen.arc(x, y, 5, 0, 7); pen.stroke();
  const place = [stepsText(headline.peak_first_step, headline.peak_step), headline.peak_phase].filter(Boolean).join(', ');
  label(chart, pen, x, Math.max(y - 7, 21), `peak ${bytesText(headline.peak.value)}${place ? `, ${place}` : ''}`, colorOf('ink'));
}

function readOut(chart, series, steps, seconds) {
  const where = phaseAt(steps, seconds), parts = [clockText(seconds, chart.range[1] - chart.range[0])];
  if (where) parts.push(stepsText(where.first, where.step), where.phase + (Number.isNaN(where.peak) ? '' : ` (exact peak ${bytesText(where.peak)})`));
  for (const each of series) {
    if (!each.visible) continue;
    const value = valueAt(chart.levelFor(each), seconds);
    if (value) parts.push(`${each.name} ${value[1] - value[0] < MIB / 4 ? bytesText(value[1]) : `${bytesText(value[0])} to ${bytesText(value[1])}`}`);
  }
  return parts.join('  ·  ');
}

function fillPhaseLog(steps, range) {
  if (!steps.num_steps) { byId('phase-log').hidden = true; return; }
  const [begin, end] = stepsInView(steps, range), rows = [], most = 60;
  for (let row = begin; row < Math.min(end, begin + most); row++) {
    for (const part of phaseEdges(steps, row)) {
      rows.push([steps.step[row], part.phase, clockText(part.begin, 1), secondsText(part.end - part.begin), Number.isNaN(part.peak) ? '-' : bytesText(part.peak)]);
    }
  }
  const heads = ['>step', 'phase', '>begins at', '>takes', '>exact peak'];
  byId('phase-rows').replaceChildren(tableNode(heads, rows));
  const more = end - begin > most ? `, the first ${most} of ${(end - begin).toLocaleString('en')} steps; zoom in for others` : '';
  byId('phase-log').querySelector('summary').textContent = `Phases in view${more}`;
}
