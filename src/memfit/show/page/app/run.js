// A run, from the top: the sentence, the budget, one step and the whole run, the cheapest changes, and the tables.
const STILL_RUNNING = 'still running';

// One that is still being measured is drawn anew whenever it has grown; what is zoomed into is in the address, and stays.
function runSection(host, id, document_) {
  const box = element('div');
  let shown = document_;
  host.append(box);
  drawRun(box, id, shown);
  const isLive = () => shown.body.run.headline.outcome.kind === STILL_RUNNING;
  return {
    isLive,
    isGrowing: isLive,
    update(next) {
      const top = window.scrollY, open = [...box.querySelectorAll('details')].map((each) => each.open), { id: focused } = document.activeElement || {};
      shown = next;
      leave();
      box.style.minHeight = `${box.offsetHeight}px`;
      box.replaceChildren();
      drawRun(box, id, shown);
      box.querySelectorAll('details').forEach((each, n) => { each.open = Boolean(open[n]); });
      if (focused && byId(focused)) byId(focused).focus();
      window.scrollTo(0, top);
      box.style.minHeight = '';
    },
  };
}

function drawRun(host, id, document_) {
  const { run, sentence, budget, traced, changes, late } = document_.body, { headline } = run;
  host.append(element('h1', '', headline.title), element('p', `sentence${headline.good ? '' : ' bad'}`, sentence));
  const outcome = element('p', headline.good ? 'soft' : 'soft bad-line');
  outcome.append(element('strong', headline.good ? 'good' : 'bad', headline.outcome.kind), ` after ${secondsText(headline.duration.value)}${headline.outcome.message ? `: ${headline.outcome.message}` : ''}  ·  ${run.kind} ${momentText(run.created_at)}`);
  host.append(outcome);
  host.append(budgetCard(budget, run));
  tracedCards(host, traced);
  const timeline = card('The whole run', 'timeline'), holder = element('div');
  host.append(timeline.node, holder);
  const against = currentState().against;
  if (against) compareRuns(timeline, holder, id, run, against, late);
  else timelineCard(timeline, id, run, null, null, late);
  compareChoice(timeline, id, against);
  changesCard(host, changes);
  ledgerCards(host, run);
  processCard(host, run);
  const pair = element('div', 'wide-pair');
  host.append(pair);
  detailCard(pair, run);
  measuringCard(pair, run);
  if (run.notes.length) { const notes = card('Notes', 'remarks'); notes.node.append(bullets(run.notes)); host.append(notes.node); }
}

// ---- the budget --------------------------------------------------------------------------------------------------------
function budgetCard(budget, run) {
  const part = card('Budget', 'budget'), room = budget.room_bytes, peak = budget.peak.value;
  const rows = [];
  if (budget.predicted && (known(budget.predicted) || budget.predicted.high)) {
    const value = budget.predicted.value ?? budget.predicted.high;
    rows.push({ name: 'predicted', parts: [{ name: 'predicted peak', value, color: 'update', hatched: true }], low: budget.predicted.low, high: budget.predicted.high, text: `${budget.predicted.value === null || budget.predicted.value === undefined ? 'at most ' : ''}${bytesText(value)}` });
  }
  if (known(budget.peak)) {
    const tensors = budget.tensor_bytes, parts = tensors ? [{ name: 'tensors', value: tensors, color: 'job' }, { name: 'outside of tensors', value: Math.max(peak - tensors, 0), color: 'data' }] : [{ name: 'the job', value: peak, color: 'job' }];
    rows.push({ name: 'measured', named: true, parts, text: bytesText(peak), low: budget.peak.low, high: budget.peak.high });
  }
  if (budget.reserved_bytes !== null) rows.push({ name: "reserved by torch's allocator", parts: [{ name: 'reserved', value: budget.reserved_bytes, color: 'used' }], text: bytesText(budget.reserved_bytes) });
  if (budget.plan) rows.push({ name: 'with the plan (tensors)', parts: [{ name: 'promised peak', value: budget.plan.peak_bytes, color: 'exact', hatched: true }], text: `${bytesText(budget.plan.peak_bytes)} of ${bytesText(budget.plan.plain_peak_bytes)}, ${((budget.plan.slowdown - 1) * 100).toFixed(0)} % slower`, line: budget.plan.budget_bytes });
  const scale = barScale(rows, room);
  for (const row of rows) row.marks = [...(room ? [{ value: room, title: `${budget.room_name}: ${bytesText(room)}` }] : []), ...(row.line ? [{ value: row.line, dashed: true, title: `budget ${bytesText(row.line)}` }] : [])];
  barRows(part, 'budget', rows, { scale });
  const words = room ? `${budget.room_name}: ${bytesText(room)}${room > scale ? ` (beyond this picture: the peak is ${((100 * (peak || 0)) / room).toFixed(1)} % of it)` : ', the red line'}` : 'how much there is to fit into is not known';
  part.node.append(element('p', 'hint', words));
  return part.node;
}

function changesCard(host, changes) {
  if (!changes.length) return;
  const part = card(changes.length === 3 ? 'The three cheapest changes' : 'The cheapest changes', 'changes');
  for (const change of changes) {
    const line = element('div', 'change'), words = element('div');
    const saved = element('span', 'saved', `−${bytesText(change.saved_bytes)}`);
    if (change.source !== 'measured') saved.append(element('span', 'mark', change.source));
    words.append(element('strong', '', change.what), element('span', 'soft', ` costs ${change.price}`));
    const code = element('code', '', change.apply), copy = copyButton(change.apply);
    const apply = element('div', 'apply');
    apply.append(code, copy);
    line.append(saved, words, apply);
    part.node.append(line);
  }
  host.append(part.node);
}

// ---- where it went -----------------------------------------------------------------------------------------------------
function ledgerCards(host, run) {
  for (const ledger of run.ledgers) {
    const part = card(`Where it went: ${ledger.device === 'host' ? '' : `${ledger.device}, `}${ledger.moment}`, `ledger-${run.ledgers.indexOf(ledger)}`);
    const remarks = [`${ledger.pid === null ? '' : `process ${ledger.pid}: `}${bytesText(ledger.peak_bytes)}, of which ${valueText(ledger.explained_ratio, 'ratio')} carries a name.`];
    if (ledger.untouched_bytes) remarks.push(`Not in memory, so not counted: ${bytesText(ledger.untouched_bytes)} of reserved heap and tensors.`);
    if (ledger.note) remarks.push(ledger.note);
    else if (ledger.step && run.headline.peak_step && ledger.step !== run.headline.peak_step) remarks.push(`Step ${ledger.step} was the largest that was traced; the peak was first reached in step ${run.headline.peak_step}.`);
    part.node.append(element('p', 'hint', remarks.join(' ')));
    const lines = element('div', 'ledger');
    for (const bar of ledger.bars) {
      const line = ledgerLine(bar, 1);
      if (!bar.parts.length) { lines.append(line); continue; }
      const details = element('details'), summary = element('summary'), inner = element('div', 'inner');
      summary.append(line);
      details.append(summary, inner);
      details.addEventListener('toggle', () => { if (details.open && !inner.childElementCount) for (const each of bar.parts) inner.append(ledgerLine(each, 1)); });
      lines.append(details);
    }
    part.node.append(lines);
    const bars = ledger.bars.map((bar) => ({ name: ledgerName(bar), text: `${bytesText(bar.num_bytes)}, ${valueText(bar.share, 'ratio')}`, parts: [{ name: bar.name, value: bar.num_bytes, color: ledgerColor(bar) }] }));
    saveTools(part.tools, 'ledger', () => barsPicture(part.head.textContent, bars, ledger.peak_bytes), () => [['kind', 'name', 'part', 'bytes', 'source'], ledger.bars.flatMap((bar) => [[bar.kind, bar.name, '', bar.num_bytes, bar.source], ...bar.parts.map((each) => [bar.kind, bar.name, each.name, each.num_bytes, each.source])])]);
    host.append(part.node);
  }
}

const ledgerName = (bar) => (!bar.name || bar.name === bar.kind ? bar.kind : ['tensors', 'module', ''].includes(bar.kind) ? bar.name : `${bar.kind}: ${bar.name}`);
const ledgerColor = (bar) => ({ unexplained: 'line', imports: 'data', tensors: 'job', module: 'job' })[bar.kind] || 'backward';

function ledgerLine(bar, scale) {
  const line = element('div', 'line'), label = element('span', 'name', ledgerName(bar)), track = element('span', 'track'), fill = element('span');
  if (bar.source && bar.source !== 'measured') label.append(element('span', 'mark', bar.source));
  if (bar.method) line.title = bar.method;
  fill.style.width = `${clamp(bar.share * 100 * scale, 0, 100)}%`;
  fill.style.background = `var(--${ledgerColor(bar)})`;
  track.append(fill);
  line.append(label, element('span', 'num', bytesText(bar.num_bytes)), element('span', 'num', valueText(bar.share, 'ratio')), track);
  return line;
}

function processCard(host, run) {
  if (run.processes.length < 2) return;
  const part = card('Processes', 'processes');
  part.node.append(table(['>pid', '~command', 'lived', '>peak', '>proportional', '>anonymous', '>file', '>shared'], run.processes.map((row) => [row.pid, row.command, `${secondsText(row.started_seconds)} to ${row.ended_seconds === null ? 'unknown' : secondsText(row.ended_seconds)}`, figureNode(row.peak, '-'), figureNode(row.proportional, '-'), figureNode(row.anonymous, '-'), figureNode(row.file, '-'), figureNode(row.shared_memory, '-')])));
  host.append(part.node);
}

function detailCard(host, run) {
  const part = card('Phases and machine', 'phases');
  if (run.phases.length) part.node.append(table(['phase', '>median peak', '>highest peak', '>takes', '>steps'], run.phases.map((row) => [row.phase, figureNode(row.median_peak, '-'), figureNode(row.highest_peak, '-'), figureNode(row.median_seconds, '-'), row.num_steps.toLocaleString('en')])));
  const pairs = [['steps', run.steps.words]];
  if (run.system) pairs.push(['background', figureNode(run.system.mean_background)], ['fullest moment of the machine', `${run.system.highest_percent.toFixed(1)} % not available`], ['least available', figureNode(run.system.lowest_available)]);
  for (const gpu of run.gpus) { const words = element('span'); words.append(`${gpu.name}: job `, figureNode(gpu.job_peak), ', device ', figureNode(gpu.device_peak), ' of ', figureNode(gpu.total)); pairs.push([`GPU ${gpu.device}`, words]); }
  pairs.push(['energy per step', figureNode(run.energy.per_step)], ['system', run.environment.system], ['processor', `${run.environment.cpu}, ${run.environment.num_cores} cores`], ['python, memfit', `${run.environment.python}, ${run.environment.memfit}`], ['folder', run.folder]);
  part.node.append(facts(pairs));
  host.append(part.node);
}

function measuringCard(host, run) {
  const part = card('How it was measured', 'measuring'), { sampler, headline } = run;
  const pairs = [['peak', `${headline.peak.method || headline.peak.reason || ''}`], ['bounds', boundsText(headline.peak)]];
  if (headline.noise) pairs.push(['repeats may differ by', `± ${bytesText(headline.noise.half_width)}`]);
  if (sampler) pairs.push(['looked every, on average', figureNode(sampler.mean_interval)], ['ticks', sampler.num_ticks.toLocaleString('en')], ['late ticks', `${sampler.num_late_ticks.toLocaleString('en')} later than one interval, at most ${secondsText(sampler.late_high.value)}`], ['processor of the sampler', figureNode(sampler.cpu_share)], ['failed reads', sampler.num_failed_reads]);
  else pairs.push(['sampler', 'unknown: it left no report']);
  part.node.append(facts(pairs));
  host.append(part.node);
}

// ---- two runs over each other ------------------------------------------------------------------------------------------
async function compareChoice(part, id, against) {
  let items = [];
  try { items = (await source.list()).items.filter((item) => item.kind === 'run' && item.id !== id); } catch { return; }
  if (against && !items.some((item) => item.id === against)) items.push({ id: against, title: against });
  if (!items.length) return;
  const choice = element('select'), none = element('option', '', 'compare with …');
  none.value = '';
  choice.setAttribute('aria-label', 'Compare with another run');
  choice.append(none, ...items.map((item) => { const option = element('option', '', item.title || item.id); option.value = item.id; return option; }));
  choice.value = against || '';
  choice.addEventListener('change', () => { keepState({ against: choice.value }); show(); });
  part.tools.prepend(choice);
}

async function compareRuns(timeline, holder, id, run, against, late) {
  let other = null;
  try { other = (await source.document(against)).body.run; } catch (error) { holder.append(errorCard(error)); timelineCard(timeline, id, run, null, null, late); return; }
  timelineCard(timeline, id, run, other, against, late);
  const part = card('What differs', 'differs');
  const rows = differencesOf(run, other);
  part.node.append(element('p', 'hint', `A: ${run.folder}   B: ${other.folder}. \`memfit diff\` says which differences are larger than the noise.`), ...(run.headline.title === other.headline.title ? [] : [facts([['A', element('code', '', run.headline.title)], ['B', element('code', '', other.headline.title)]])]), table(['', '>A', '>B', '>B − A'], rows, 'differences'));
  saveNumbers(part.tools, 'differences', () => [['', 'A', 'B', 'B - A'], [['command', run.headline.title, other.headline.title, ''], ...rows]]);
  holder.append(part.node);
}

function differencesOf(a, b) {
  const rows = [], line = (name, one, two, unit) => { if (one === two) return; rows.push([name, one === null ? '-' : unit ? valueText(one, unit) : String(one), two === null ? '-' : unit ? valueText(two, unit) : String(two), unit && one !== null && two !== null ? `${two > one ? '+' : '−'}${valueText(Math.abs(two - one), unit)}` : '']); };
  const value = (figure) => (known(figure) ? figure.value : null);
  line('outcome', a.headline.outcome.kind, b.headline.outcome.kind);
  line('peak', value(a.headline.peak), value(b.headline.peak), 'bytes');
  line('duration', value(a.headline.duration), value(b.headline.duration), 'seconds');
  line('time per step', value(a.steps.median_seconds), value(b.steps.median_seconds), 'seconds');
  line('steps', a.steps.words, b.steps.words);
  for (const phase of a.phases) { const twin = b.phases.find((each) => each.phase === phase.phase); if (twin) line(`highest peak in ${phase.phase}`, value(phase.highest_peak), value(twin.highest_peak), 'bytes'); }
  for (const name of ['python', 'memfit', 'system', 'cpu', 'libc', 'transparent_hugepages']) line(name, a.environment[name] ?? null, b.environment[name] ?? null);
  const bars = (run) => new Map(((run.ledgers[0] || {}).bars || []).map((bar) => [bar.name || bar.kind, bar.num_bytes])), one = bars(a), two = bars(b);
  const largestFirst = [...new Set([...one.keys(), ...two.keys()])].sort((x, y) => Math.abs((two.get(y) ?? 0) - (one.get(y) ?? 0)) - Math.abs((two.get(x) ?? 0) - (one.get(x) ?? 0)));
  for (const name of largestFirst) if (one.size && two.size) line(`of the peak: ${name}`, one.get(name) ?? 0, two.get(name) ?? 0, 'bytes');
  return rows;
}
