// Everything that is a table, a list or a card.
function tableNode(heads, rows) {
  const table = element('table'), head = element('tr'), body = element('tbody');
  const right = heads.map((text) => text.startsWith('>')), code = heads.map((text) => text.startsWith('~'));
  heads.forEach((text, n) => head.append(element('th', right[n] ? 'num' : '', text.replace(/^[>~]/, ''))));
  table.append(element('thead'));
  table.tHead.append(head);
  for (const row of rows) {
    const line = element('tr');
    row.forEach((cell, n) => {
      const box = element('td', right[n] ? 'num' : code[n] ? 'code' : '');
      box.append(cell instanceof Node ? cell : document.createTextNode(String(cell)));
      line.append(box);
    });
    body.append(line);
  }
  table.append(body);
  return table;
}

function listNode(pairs) {
  const list = element('dl');
  for (const [name, value] of pairs) {
    const told = element('dd');
    told.append(value instanceof Node ? value : document.createTextNode(String(value)));
    list.append(element('dt', '', name), told);
  }
  return list;
}

function stat(name, figure, more, first) {
  const box = element('div', first ? 'stat first' : 'stat'), value = element('div', known(figure) ? 'value' : 'value unknown');
  value.append(known(figure) ? figureNode(figure) : 'unknown');
  box.append(element('div', 'name', name), value);
  for (const line of known(figure) ? more : [figure.reason]) if (line) box.append(element('div', 'more', line));
  byId('cards').append(box);
}

function fillHead(run) {
  const { headline, steps } = run, { outcome } = headline;
  byId('title').textContent = headline.title;
  const line = byId('outcome'), kind = element('strong', '', outcome.kind);
  if (!headline.good) line.className = 'bad';
  const where = [outcome.step !== undefined ? `step ${outcome.step}` : '', outcome.phase || ''].filter(Boolean).join(', ');
  line.append(kind, ` after ${secondsText(headline.duration.value)}${where ? `, in ${where}` : ''}${outcome.message ? `: ${outcome.message}` : ''}  ·  ${run.kind} ${run.created_at}`);
  const place = [headline.peak_seconds !== null ? `at ${secondsText(headline.peak_seconds)}` : '', stepsText(headline.peak_first_step, headline.peak_step), headline.peak_phase].filter(Boolean).join(', ');
  const noise = headline.noise && headline.noise.sources.length ? `repeats may differ by ± ${bytesText(headline.noise.half_width)}` : '';
  const limit = headline.limit_bytes && known(headline.peak) ? `${valueText(headline.peak.value / headline.limit_bytes, 'ratio')} of the limit of ${bytesText(headline.limit_bytes)}` : '';
  stat('Peak', headline.peak, [place, limit, [boundsText(headline.peak), headline.peak.method].filter(Boolean).join(': '), noise], true);
  if (steps.num_steps) stat('Time per step', steps.median_seconds, [`median; steps: ${steps.words}`, known(steps.steps_per_second) ? `${valueText(steps.steps_per_second.value, 'count')} per second` : '']);
  if (steps.num_steps) stat('Peak of a typical step', steps.median_peak, [steps.largest_group > 1 ? `median of the exact peaks; short steps share one, up to ${steps.largest_group} of them` : 'median of the exact peaks']);
  stat('Energy per step', run.energy.per_step, [run.energy.per_step.method]);
  if (run.system) stat('Background', run.system.mean_background, ['used by other programs, on average', `${bytesText(run.system.mean_background.low)} to ${bytesText(run.system.mean_background.high)}`]);
}

function fillProcesses(run) {
  if (run.processes.length < 2) return;
  byId('process-card').hidden = false;
  const rows = run.processes.map((row) => {
    const life = `${secondsText(row.started_seconds)} to ${row.ended_seconds === null ? 'unknown' : secondsText(row.ended_seconds)}`;
    return [row.pid, row.command, life, figureNode(row.peak, '-'), figureNode(row.proportional, '-'), figureNode(row.anonymous, '-'), figureNode(row.file, '-'), figureNode(row.shared_memory, '-')];
  });
  byId('processes').append(tableNode(['>pid', '~command', 'lived', '>peak', '>proportional', '>anonymous', '>file', '>shared'], rows));
  if (run.num_hidden_processes) byId('processes').append(element('p', 'hint', `The ${run.num_hidden_processes} smallest are not drawn in the timeline.`));
}

function fillSystem(run) {
  const series = run.curves.filter((curve) => ['used', 'background', 'device'].includes(curve.role)).map((curve, n) => seriesOf(curve, n));
  if (!series.length) return null;
  byId('system-card').hidden = false;
  const chart = new Chart(byId('system'), {
    range: [0, Math.max(run.headline.duration.value, 1e-3)], series: () => series,
    onPoint: (seconds) => { byId('system-read').textContent = seconds === null ? '' : readOut(chart, series, readSteps(run.steps), seconds); },
  });
  byId('system').setAttribute('aria-label', 'Memory of the machine over time');
  const legend = element('div', 'toggles');
  for (const each of series) toggle(legend, each, () => chart.draw());
  const pairs = [];
  if (run.system) {
    const system = run.system;
    pairs.push(['total', figureNode(system.total)], ['used on average', figureNode(system.mean_used)], ['of which this job', figureNode(system.mean_job)],
      ['background', figureNode(system.mean_background)], ['fullest moment', `${system.highest_percent.toFixed(1)} % not available`], ['least available', figureNode(system.lowest_available)]);
  }
  for (const gpu of run.gpus) {
    const told = element('span');
    told.append(`${gpu.name}: job `, figureNode(gpu.job_peak), ', device ', figureNode(gpu.device_peak), ' of ', figureNode(gpu.total));
    pairs.push([`GPU ${gpu.device}`, told]);
  }
  byId('system-table').append(legend, listNode(pairs));
  return chart;
}

function fillEnergy(run) {
  const energy = run.energy;
  if (!energy.rows.length) { byId('energy').append(element('p', '', `unavailable: ${energy.reason || 'nothing was read'}`)); return; }
  const rows = energy.rows.map((row) => [row.domain, figureNode(row.figure), row.scope, secondsText(row.window_seconds), row.figure.method || '']);
  byId('energy').append(tableNode(['domain', '>energy', 'of the whole', '>over', 'how'], rows), listNode([['per step', figureNode(energy.per_step)]]));
}

function fillSampler(run) {
  const sampler = run.sampler;
  if (!sampler) { byId('sampler').append(element('p', '', 'unknown: the sampler left no report')); return; }
  byId('sampler').append(listNode([
    ['processor', figureNode(sampler.cpu_share)], ['memory of its process', figureNode(sampler.resident)], ['looked every, on average', figureNode(sampler.mean_interval)], ['ticks', sampler.num_ticks.toLocaleString('en')],
    ['later than one interval', `${sampler.num_late_ticks.toLocaleString('en')}, at most ${secondsText(sampler.late_high.value)}`], ['failed reads', sampler.num_failed_reads],
  ]));
}

function fillEnvironment(run) {
  const { environment, settings } = run, pairs = [
    ['folder', run.folder], ['working folder', run.working_folder], ['run', run.run_id], ['interval', secondsText(settings.interval_seconds)],
    ['stable allocator', settings.stable ? 'yes' : 'no'], ['marks', settings.marks === false ? 'off' : 'on'], ['system', environment.system],
    ['processor', `${environment.cpu}, ${environment.num_cores} cores`], ['memory', environment.memory_total_bytes ? bytesText(environment.memory_total_bytes) : 'unknown'],
  ];
  if (environment.memory_limit_bytes) pairs.push(['control group allows', bytesText(environment.memory_limit_bytes)]);
  pairs.push(['python', environment.python], ['memfit', environment.memfit]);
  for (const [name, key] of [['libc', 'libc'], ['huge pages', 'transparent_hugepages']]) if (environment[key]) pairs.push([name, environment[key]]);
  for (const [name, value] of Object.entries(environment.variables || {})) pairs.push([name, value]);
  byId('environment').append(listNode(pairs));
}

function fillNotes(run) {
  if (!run.notes.length) return;
  byId('notes-card').hidden = false;
  for (const note of run.notes) byId('notes').append(element('li', '', note));
}

function fillComparison(comparison) {
  if (!comparison) return;
  byId('comparison-card').hidden = false;
  const rows = comparison.differences.map((row) => {
    const change = known(row.change) ? `${row.change.value > 0 ? '+' : ''}${valueText(row.change.value, row.change.unit)}` : '-';
    const noise = row.noise === null ? '-' : `± ${valueText(row.noise, row.change.unit)}`;
    const verdict = element('span', `verdict-${row.verdict.split(' ')[0]}`, row.verdict);
    verdict.title = row.reason;
    const seen = known(row.first) && row.first.value && typeof row.resolves === 'number' ? `${(100 * row.resolves / Math.abs(row.first.value)).toFixed(1)} %` : '-';
    return [row.name, figureNode(row.first, '-'), figureNode(row.second, '-'), change, noise, seen, verdict, row.reason];
  });
  byId('comparison').append(element('p', 'hint', `A: ${comparison.first.folders.join(', ')}   B: ${comparison.second.folders.join(', ')}`),
    tableNode(['quantity', '>A', '>B', '>change', '>noise', '>seen from', 'verdict', 'because'], rows));
  for (const note of comparison.notes) byId('comparison').append(element('p', 'hint', note));
}
