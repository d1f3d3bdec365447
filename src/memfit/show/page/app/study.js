// A study: the front of metric and memory, parallel coordinates, curves and a table, all of one selection.
const TOPS = [100, 20, 5, 1];
const GOOD = 'done';

function readStudy(body) {
  const number = columnOf(body.number), outcome = columnOf(body.outcome), message = columnOf(body.message);
  // Only outcomes that occurred get a tick; 'done' lies at the bottom.
  const seen = body.outcome.labels.map((_, code) => outcome.includes(code)), places = body.outcome.labels.map((_, code) => seen.slice(0, code).filter(Boolean).length);
  const columns = [
    { key: 'outcome', label: 'outcome', kind: 'choice', values: outcome.map((code) => places[code]), labels: body.outcome.labels.filter((_, code) => seen[code]), missing: '-' },
    ...body.parameters.map((column) => ({ key: `p.${column.name}`, label: column.name, kind: column.kind, values: columnOf(column), labels: column.labels, log: column.log, unit: '', missing: 'not set', isParameter: true })),
    ...body.objectives.map((column) => ({ key: column.name, label: column.label, kind: 'number', values: columnOf(column), unit: column.unit, log: !column.unit && spansFar(columnOf(column)), missing: 'no value', isObjective: true, direction: column.direction, sources: column.sources })),
  ];
  return { body, size: number.length, number, outcome, message, hasRun: columnOf(body.has_run), numIntermediates: columnOf(body.num_intermediates), columns, byKey: new Map(columns.map((column) => [column.key, column])) };
}

// Whether one value would push all others into a corner of its axis.
function spansFar(values) {
  let low = Infinity, high = 0;
  for (const value of values) if (value === value) { if (value < low) low = value; if (value > high) high = value; }
  return low > 0 && high / low >= 50;
}

// The choices that are there in the search space but at no trial are no axis; nor is what is the same everywhere.
function usualAxes(study) {
  const varies = (column) => { let first; for (const value of column.values) { if (first === undefined) first = value; else if (value !== first && !(value !== value && first !== first)) return true; } return false; };
  const kept = study.columns.filter((column) => column.isParameter && varies(column));
  const objectives = study.columns.filter((column) => column.isObjective && ['metric', 'peak', 'duration'].includes(column.key));
  const outcome = study.columns.filter((column) => column.key === 'outcome' && varies(column));
  return [...outcome, ...kept.slice(0, 10), ...objectives];
}

function studySection(host, id, document_) {
  const state = currentState(), logs = readLogs(state.log);
  let study = withLogs(readStudy(document_.body), logs);
  const view = {
    id, top: clamp(Number(state.top) || 100, 0.001, 100), by: state.by, sort: state.sort || '', hovered: null, trial: state.trial === undefined ? null : Number(state.trial),
    pins: (state.pins || '').split(',').filter(Boolean).map(Number), axes: state.axes ? state.axes.split(',').map(decodeURIComponent) : null,
  };
  const ranked = () => study.columns.filter((column) => column.isObjective);
  if (!study.byKey.has(view.by) || !study.byKey.get(view.by).isObjective) view.by = (ranked()[0] || { key: '' }).key;
  const head = element('div', 'study-head'), controls = element('div', 'row controls');
  host.append(head, controls);
  const parts = { front: card('Metric and memory', 'front'), parallel: card('Parallel coordinates', 'parallel'), curves: card('Intermediate results', 'curves'), table: card('Trials', 'trials'), trial: card('Trial', 'trial'), findings: card('What drives memory', 'findings') };
  host.append(parts.front.node, parts.parallel.node, parts.table.node, parts.trial.node, parts.curves.node, parts.findings.node);

  // ---- the selection ---------------------------------------------------------------------------------------------------
  let order = [], rankOf = null, shades = null, selected = new Bits(0);
  function rank() {
    const column = study.byKey.get(view.by);
    order = [];
    shades = new Float32Array(study.size).fill(NOT_RANKED);
    if (!column) return;
    const sign = column.direction === 'maximize' ? -1 : 1, good = study.body.outcome.labels.indexOf(GOOD);
    for (let i = 0; i < study.size; i++) if (!Number.isNaN(column.values[i]) && study.outcome[i] === good) order.push(i);
    order.sort((a, b) => sign * (column.values[a] - column.values[b]) || study.number[a] - study.number[b]);
    // By place among the ranked, so that one outlier does not take all the colours.
    order.forEach((row, place) => { shades[row] = order.length > 1 ? place / (order.length - 1) : 0; });
    rankOf = null;
  }
  function topBits() {
    const bits = new Bits(study.size);
    if (view.top >= 100) return bits.fill();
    const kept = Math.max(Math.ceil((order.length * view.top) / 100 - 1e-9), Math.min(1, order.length));
    for (let n = 0; n < kept; n++) bits.add(order[n]);
    return bits;
  }
  let settle = 0;
  function select(isMoving = false) {
    const started = performance.now();
    selected = parallel.passing().and(topBits());
    parallel.setSelected(selected, isMoving);
    fillTable();
    fillCount();
    clearTimeout(settle);
    const rest = () => { front.refresh(); curves.refresh().catch(() => {}); keepState({ brush: parallel.brushText(), top: view.top === 100 ? '' : view.top, by: view.by }); };
    if (isMoving) settle = setTimeout(rest, 600); else settle = setTimeout(rest, 0);
    document.documentElement.dataset.brushMs = (performance.now() - started).toFixed(1);
  }
  onLeave(() => clearTimeout(settle));

  // ---- controls --------------------------------------------------------------------------------------------------------
  const bySelect = element('select'), anyTop = element('input'), count = element('strong', 'count');
  count.setAttribute('role', 'status');
  function fillControls() {
    controls.replaceChildren();
    const group = element('span', 'segments');
    group.setAttribute('role', 'group');
    group.setAttribute('aria-label', 'Best trials');
    for (const top of TOPS) {
      const node = button(`${top} %`, () => setTop(top), `The best ${top} % (key ${TOPS.indexOf(top) + 1})`);
      node.dataset.top = top;
      group.append(node);
    }
    bySelect.replaceChildren(...ranked().map((column) => { const option = element('option', '', `${column.label}${column.direction === 'maximize' ? ', largest first' : ''}`); option.value = column.key; return option; }));
    bySelect.value = view.by;
    anyTop.type = 'number'; anyTop.min = '0.001'; anyTop.max = '100'; anyTop.step = 'any'; anyTop.value = view.top;
    anyTop.id = 'any-top';
    bySelect.id = 'by';
    const byLabel = element('label', 'check', 'by '), anyLabel = element('label', 'check', 'or ');
    byLabel.append(bySelect);
    anyLabel.append(anyTop, ' %');
    controls.append(element('span', 'soft', 'best'), group, anyLabel, byLabel, button('No filter', () => { view.top = 100; fillControls(); parallel.clear(); }, 'Take all filters off (key x)'), count);
    markTop();
  }
  function markTop() { for (const node of controls.querySelectorAll('[data-top]')) node.setAttribute('aria-pressed', String(Number(node.dataset.top) === view.top)); }
  function setTop(top) { view.top = clamp(top, 0.001, 100); anyTop.value = view.top; markTop(); select(); }
  anyTop.addEventListener('change', () => setTop(Number(anyTop.value) || 100));
  bySelect.addEventListener('change', () => { view.by = bySelect.value; rank(); select(); });
  function fillCount() { count.textContent = `${selected.count().toLocaleString('en')} of ${study.size.toLocaleString('en')} trials`; }

  function fillHead() {
    const { body } = study, counts = new Map();
    for (const code of study.outcome) { const word = body.outcome.labels[code]; counts.set(word, (counts.get(word) || 0) + 1); }
    const words = [...counts].sort((a, b) => b[1] - a[1]).map(([word, number]) => `${number.toLocaleString('en')} ${word}`).join(', ');
    head.replaceChildren(element('h1', '', body.name), element('p', 'sentence', studySentence(study)), element('p', 'soft', `${words || 'no trials yet'}  ·  ${body.what}, tuner ${body.tuner}${body.num_wanted ? `, ${body.num_wanted.toLocaleString('en')} wanted` : ''}`));
    for (const note of body.notes) head.append(element('p', 'hint', note));
  }

  // ---- parallel coordinates --------------------------------------------------------------------------------------------
  const stage = element('div', 'stage'), say = element('p', 'read'), axisBox = element('details', 'axes-box');
  say.setAttribute('role', 'status');
  say.dataset.idle = 'A trial under the mouse is written here.';
  const parallel = new Parallel(stage, {
    shades: () => shades, onBrush: (isMoving) => select(isMoving), onHover: (row) => hover(row, 'parallel'), onPick: (row) => openTrial(study.number[row]),
    onLabel: switchLog, onSay: (text) => { say.textContent = text; },
  });
  parts.parallel.node.append(element('p', 'hint', 'Drag along an axis to filter, click it to take the filter off, click its name for a logarithmic scale. Grey: all trials; colour: the selected ones, blue the best, violet between, orange the worst, dashed grey what failed, was rejected or still runs. The grey strip below holds trials that have no value there: failed, out of memory, rejected, or not set.'), stage, say, axisBox);
  saveTools(parts.parallel.tools, 'parallel', () => parallel.picture(), () => tableNumbers());
  function shownAxes() { return view.axes ? view.axes.map((key) => study.byKey.get(key)).filter(Boolean) : usualAxes(study); }
  function chooseAxes() {
    parallel.setAxes(shownAxes(), study.size);
    select();
  }
  // A filter stays at its values when its scale changes.
  function switchLog(axis) {
    if (!axis.canLog) return;
    const kept = parallel.brushText();
    axis.log = !axis.log;
    logs.set(axis.key, axis.log);
    keepState({ log: logsText(logs) });
    parallel.setAxes(shownAxes(), study.size);
    parallel.readBrushes(kept);
    select();
    front.draw();
  }
  function fillAxisBox() {
    const open = axisBox.open, list = element('div', 'toggles'), shown = shownAxes();
    const remaining = study.columns.filter((column) => !shown.includes(column));
    for (const column of [...shown, ...remaining]) {
      const label = element('label'), box = element('input');
      box.type = 'checkbox'; box.checked = shown.includes(column);
      box.addEventListener('change', () => setAxes(box.checked ? [...shownAxes(), column] : shownAxes().filter((each) => each !== column)));
      label.append(box, column.label);
      if (box.checked) label.append(button('‹', () => moveAxis(column, -1), `Move ${column.label} to the left`), button('›', () => moveAxis(column, 1), `Move ${column.label} to the right`));
      list.append(label);
    }
    axisBox.replaceChildren(element('summary', '', remaining.length ? `Axes: ${shown.length} of ${study.columns.length} are shown` : 'Axes'), list);
    axisBox.open = open;
  }
  function setAxes(axes) { view.axes = axes.map((axis) => axis.key); keepState({ axes: view.axes.map(encodeURIComponent).join(',') }); chooseAxes(); fillAxisBox(); }
  function moveAxis(column, by) { const axes = shownAxes(), at = axes.indexOf(column), to = clamp(at + by, 0, axes.length - 1); axes.splice(to, 0, ...axes.splice(at, 1)); setAxes(axes); }

  // ---- one trial -------------------------------------------------------------------------------------------------------
  function rowOf(number) { if (!rankOf) { rankOf = new Map(); study.number.forEach((each, row) => rankOf.set(each, row)); } return rankOf.get(number); }
  function hover(row, from) {
    if (view.hovered === row) return;
    view.hovered = row;
    if (from !== 'parallel') parallel.setHovered(row);
    front.hover(row);
    if (from !== 'curves') curves.hover(row);
    if (from !== 'timelines') trialView.hover(row);
    list.mark();
    say.textContent = row === null ? '' : rowText(study, row);
  }
  const trialView = trialCard(parts.trial, { study: () => study, id, view, rowOf, togglePin, onHover: (row) => hover(row, 'timelines'), onPick: (number) => openTrial(number) });
  function openTrial(number) { view.trial = number; keepState({ trial: number ?? '' }); trialView.show(number); list.mark(); parallel.setHovered(number === null ? null : rowOf(number) ?? null); }
  function togglePin(number) { view.pins = view.pins.includes(number) ? view.pins.filter((each) => each !== number) : [...view.pins, number].slice(-6); keepState({ pins: view.pins.join(',') }); trialView.show(view.trial); list.mark(); }

  // ---- front, curves, table --------------------------------------------------------------------------------------------
  const front = frontCard(parts.front, { study: () => study, selected: () => selected, onHover: (row) => hover(row, 'front'), onPick: openTrial });
  const curves = curvesCard(parts.curves, { study: () => study, selected: () => selected, id, onHover: (row) => hover(row, 'curves'), onPick: openTrial });
  const list = tableCard(parts.table, { study: () => study, view, onHover: (row) => hover(row, 'table'), onPick: openTrial, togglePin });
  function fillTable() { list.show(inOrder()); }
  // All trials are sorted once for a column; the selection is picked out of them.
  let sortedFor = '', sortedRows = null, explainedSize = 0;
  function inOrder() {
    const key = `${view.sort} ${view.by}`;
    if (sortedFor !== key || !sortedRows || sortedRows.length !== study.size) { sortedFor = key; sortedRows = sorted(Array.from({ length: study.size }, (_, row) => row)); }
    return selected.rows(sortedRows);
  }
  function sorted(rows) {
    const key = view.sort.replace(/^-/, ''), column = study.byKey.get(key), sign = view.sort.startsWith('-') ? -1 : 1;
    if (view.sort && column) return rows.sort((a, b) => compareValues(column.values[a], column.values[b]) * sign || a - b);
    if (key === 'number' && view.sort) return rows.sort((a, b) => sign * (study.number[a] - study.number[b]));
    return rows.sort((a, b) => shades[a] - shades[b] || a - b);
  }
  list.onSort = (key) => { view.sort = view.sort === key ? `-${key}` : key; keepState({ sort: view.sort }); fillTable(); };
  saveTools(parts.table.tools, 'trials', async () => parallel.picture(), () => tableNumbers());
  parts.table.tools.firstChild.remove();
  function tableNumbers() {
    const columns = study.columns, rows = Array.from(inOrder());
    return [['trial', ...columns.map((column) => column.label + (column.unit ? ` (${column.unit})` : ''))], rows.map((row) => [study.number[row], ...columns.map((column) => (column.kind === 'choice' ? column.labels[column.values[row]] ?? '' : column.values[row]))])];
  }

  function fillAll(isFirst) {
    rank();
    fillHead();
    fillControls();
    fillAxisBox();
    parallel.setAxes(shownAxes(), study.size);
    if (isFirst) parallel.readBrushes(state.brush);
    select();
    // What is looked at first is on the screen by now; the rest comes after that is painted.
    requestAnimationFrame(() => setTimeout(() => {
      document.documentElement.dataset.paintedMs = performance.now().toFixed(0);
      front.draw();
      if (view.trial !== null) openTrial(view.trial); else trialView.show(null);
      findMore();
    }, 0));
  }
  // Findings take a while: they are asked for once the page is there, again whenever a live study has half as many
  // trials more, and when it has ended. Until they come, the ones before stay.
  async function findMore() {
    fillFindings(parts.findings, study);
    if (study.body.findings || !source.isServed) return;
    await askFindings();
  }
  async function askFindings() {
    explainedSize = study.size;
    try { const answer = await source.later(id, 'findings'); study.body.findings = answer.findings; study.body.findings_reason = answer.findings_reason; fillFindings(parts.findings, study); } catch { /* the rest of the page does not need them */ }
  }
  fillAll(true);
  onRedraw(() => { readShades(); parallel.layout(); });
  const keys = (event) => {
    if (event.target.matches('input, select, textarea') || event.ctrlKey || event.metaKey || event.altKey) return;
    if (['1', '2', '3', '4'].includes(event.key)) setTop(TOPS[Number(event.key) - 1]);
    else if (event.key === 'x') { setTop(100); parallel.clear(); }
    else if (event.key === 'j' || event.key === 'k') list.step(event.key === 'j' ? 1 : -1);
    else return;
    event.preventDefault();
  };
  document.addEventListener('keydown', keys);
  onLeave(() => document.removeEventListener('keydown', keys));
  return {
    // A study that went on: the same filters over more trials.
    update(next) { const kept = parallel.brushText(), { findings, findings_reason } = study.body; study = withLogs(readStudy(next.body), logs); if (!study.body.findings) Object.assign(study.body, { findings, findings_reason }); sortedRows = null; rankOf = null; rank(); fillHead(); fillControls(); parallel.setAxes(shownAxes(), study.size); parallel.readBrushes(kept); select(); front.draw(); if (source.isServed && (!isLive() || study.size >= 1.5 * explainedSize)) askFindings(); },
    isLive,
    isGrowing: () => isLive() && study.body.is_running !== false,
    word: () => (study.body.is_running === false ? 'stopped' : 'live'),
  };
  function isLive() { const running = study.body.outcome.labels.indexOf('running'); return study.outcome.includes(running) || (study.body.num_wanted && study.size < study.body.num_wanted) || study.size === 0; }
}

// 'lr:0;peak:1' -> which axes the reader wants logarithmic or linear, whatever is usual.
function readLogs(text) { return new Map((text || '').split(';').map((part) => part.split(':')).filter((pair) => pair.length === 2).map(([key, value]) => [decodeURIComponent(key), value === '1'])); }
const logsText = (logs) => [...logs].map(([key, value]) => `${encodeURIComponent(key)}:${value ? 1 : 0}`).join(';');
function withLogs(study, logs) { for (const [key, value] of logs) if (study.byKey.has(key)) study.byKey.get(key).log = value; return study; }

function compareValues(a, b) { if (Number.isNaN(a)) return Number.isNaN(b) ? 0 : 1; if (Number.isNaN(b)) return -1; return a - b; }
function cellText(column, row) { const value = column.values[row]; return Number.isNaN(value) ? column.missing : column.kind === 'choice' ? column.labels[value] : unitText(value, column.unit); }
function rowText(study, row) { return [`trial ${study.number[row]}`, study.body.outcome.labels[study.outcome[row]], ...study.columns.filter((column) => column.key !== 'outcome' && !Number.isNaN(column.values[row])).map((column) => `${column.label} ${cellText(column, row)}`)].join('  ·  '); }

function bestRow(study, key) {
  const column = study.byKey.get(key), good = study.body.outcome.labels.indexOf(GOOD);
  if (!column) return null;
  const sign = column.direction === 'maximize' ? -1 : 1;
  let best = null;
  for (let i = 0; i < study.size; i++) if (study.outcome[i] === good && !Number.isNaN(column.values[i]) && (best === null || sign * (column.values[i] - column.values[best]) < 0)) best = i;
  return best;
}

function studySentence(study) {
  const metric = study.byKey.get('metric'), peak = study.byKey.get('peak'), best = bestRow(study, 'metric'), words = [];
  if (best !== null) words.push(`The best trial is ${study.number[best]} with ${metric.label === 'metric' ? 'a metric of' : metric.label} ${cellText(metric, best)}${peak && !Number.isNaN(peak.values[best]) ? ` at a peak of ${cellText(peak, best)}` : ''}`);
  const least = bestRow(study, 'peak');
  if (least !== null) { let most = least; const good = study.outcome[least]; peak.values.forEach((value, row) => { if (study.outcome[row] === good && value > peak.values[most]) most = row; }); words.push(`peaks of finished trials lie between ${cellText(peak, least)} (trial ${study.number[least]}) and ${cellText(peak, most)} (trial ${study.number[most]})`); }
  return words.length ? `${words.join('; ')}.` : 'No trial has ended well yet.';
}

// ---- the front of metric and memory ------------------------------------------------------------------------------------
const MOST_POINTS = 4000;

// From the least memory on, so that a step to the next one holds what can be had until there.
function frontRows(study) {
  const metric = study.byKey.get('metric'), peak = study.byKey.get('peak');
  if (!metric || !peak) return [];
  const sign = metric.direction === 'maximize' ? -1 : 1, good = study.body.outcome.labels.indexOf(GOOD), rows = [];
  for (let i = 0; i < study.size; i++) if (study.outcome[i] === good && !Number.isNaN(metric.values[i]) && !Number.isNaN(peak.values[i])) rows.push(i);
  rows.sort((a, b) => sign * (metric.values[a] - metric.values[b]) || peak.values[a] - peak.values[b]);
  const front = [];
  let least = Infinity;
  for (const row of rows) if (peak.values[row] < least) { least = peak.values[row]; front.push(row); }
  return front.reverse();
}

function frontCard(part, { study, selected, onHover, onPick }) {
  const host = element('div', 'chart'), note = element('p', 'hint');
  part.node.append(host, note);
  let drawn = null, rows = [];
  const data = (list) => { const metric = study().byKey.get('metric'), peak = study().byKey.get('peak'); return Array.from(list, (row) => [peak.values[row], metric.values[row], row]); };
  function points(bits) {
    const metric = study().byKey.get('metric'), peak = study().byKey.get('peak'), all = [];
    for (let i = 0; i < study().size; i++) if ((!bits || bits.has(i)) && !Number.isNaN(metric.values[i]) && !Number.isNaN(peak.values[i])) all.push(i);
    const step = Math.ceil(all.length / MOST_POINTS);
    return step > 1 ? all.filter((_, n) => n % step === 0) : all;
  }
  const option = () => {
    const one = study(), metric = one.byKey.get('metric'), limit = one.body.limit_bytes;
    const text = (row) => rowText(one, row).split('  ·  ').join('\n');
    const mark = limit ? { silent: true, symbol: 'none', label: { formatter: `limit ${bytesText(limit)}`, color: colorOf('limit'), align: 'right' }, lineStyle: { color: colorOf('limit'), type: 'dashed' }, data: [{ xAxis: limit }] } : undefined;
    return {
      grid: { left: 70, right: 24, top: 28, bottom: 46 }, tooltip: { trigger: 'item', formatter: (item) => (item.data && item.data[2] !== undefined ? text(item.data[2]) : '') },
      xAxis: axisStyle('peak memory', 'bytes', byteRange([...points(null).map((row) => one.byKey.get('peak').values[row]), ...(limit ? [limit] : [])])), yAxis: axisStyle(metric.label, '', { gap: 52, ...(metric.log ? { type: 'log' } : {}) }),
      series: [
        { id: 'context', type: 'scatter', data: data(points(null)), symbolSize: 3.5, itemStyle: { color: colorOf('context'), opacity: 0.55 }, silent: true, z: 1 },
        { id: 'chosen', type: 'scatter', data: data(points(selected())), symbolSize: 5.5, itemStyle: { color: colorOf('job'), opacity: 0.75 }, z: 2, markLine: mark },
        { id: 'front', type: 'line', step: 'end', data: data(rows), symbol: 'diamond', symbolSize: 9, lineStyle: { color: colorOf('exact'), width: 1.5 }, itemStyle: { color: colorOf('exact') }, z: 3 },
        { id: 'hovered', type: 'scatter', data: [], symbolSize: 13, itemStyle: { color: 'transparent', borderColor: colorOf('ink'), borderWidth: 2 }, silent: true, z: 4 },
      ],
    };
  };
  return {
    draw() {
      const one = study(), can = one.byKey.has('metric') && one.byKey.has('peak');
      part.node.hidden = !can;
      if (!can) return;
      rows = frontRows(one);
      host.dataset.front = JSON.stringify(data(rows).map(([bytes, metric]) => [bytes, metric]));
      note.textContent = `Orange: the ${rows.length === 1 ? 'trial' : `${rows.length} trials`} that no other beats in both. Blue: the selection. ${one.size > MOST_POINTS ? 'Of very many points an even part is drawn, the front always whole.' : ''}`;
      if (drawn) { drawn.draw(); return; }
      drawn = drawnChart(host, option, 330);
      drawn.chart.on('mouseover', (item) => { if (item.data) onHover(item.data[2]); });
      drawn.chart.on('mouseout', () => onHover(null));
      drawn.chart.on('click', (item) => { if (item.data) onPick(study().number[item.data[2]]); });
      saveTools(part.tools, 'front', drawn.picture, () => [['trial', 'peak (bytes)', 'metric', 'on the front'], points(null).map((row) => [study().number[row], study().byKey.get('peak').values[row], study().byKey.get('metric').values[row], rows.includes(row) ? 1 : 0])]);
    },
    refresh() { if (drawn) drawn.chart.setOption({ series: [{ id: 'chosen', data: data(points(selected())) }] }); },
    hover(row) { if (drawn) drawn.chart.setOption({ series: [{ id: 'hovered', data: row === null ? [] : data([row]) }] }); },
  };
}

// ---- intermediate results ----------------------------------------------------------------------------------------------
const MOST_LINES = 60;

function curvesCard(part, { study, selected, id, onHover, onPick }) {
  const host = element('div', 'chart'), note = element('p', 'hint');
  part.node.append(host, note);
  let plot = null, asked = '';
  const numberOf = (row) => (row === null ? null : study().number[row]);
  function cut(curves) {
    const numbers = columnOf(curves.number), ends = columnOf(curves.end), sequence = columnOf(curves.sequence), value = columnOf(curves.value), found = new Map();
    numbers.forEach((number, n) => { const begin = n ? ends[n - 1] : 0; if (ends[n] > begin) found.set(number, [sequence.slice(begin, ends[n]), value.slice(begin, ends[n])]); });
    return found;
  }
  let inline = null, inlineOf = null;
  async function curvesOf(numbers) {
    if (study().body.curves) { if (inlineOf !== study().body.curves) { inlineOf = study().body.curves; inline = cut(inlineOf); } return inline; }
    const answer = await source.curves(id, numbers);
    return answer ? cut(answer) : new Map();
  }
  return {
    async refresh() {
      const one = study(), metric = one.byKey.get('metric');
      part.node.hidden = !one.numIntermediates.some((number) => number > 1);  // single reports are the metric of the table
      if (part.node.hidden) return;
      const with_ = selected().rows().filter((row) => one.numIntermediates[row] > 0), sign = metric && metric.direction === 'maximize' ? -1 : 1;
      const shown = Array.from(metric ? leastRows(with_, (row) => sign * metric.values[row], MOST_LINES) : with_.slice(0, MOST_LINES)), numbers = shown.map((row) => one.number[row]), key = `${one.size} ${numbers.join(',')}`;
      if (key === asked) return;
      asked = key;
      let found;
      try { found = await curvesOf(numbers); } catch (error) { note.textContent = error.message; return; }
      if (asked !== key) return;
      const lines = numbers.filter((number) => found.has(number)).map((number, n) => { const [x, y] = found.get(number); return { name: `trial ${number}`, key: shown[numbers.indexOf(number)], x: Array.from(x), y: Array.from(y, (v) => (Number.isNaN(v) ? null : v)), color: () => `rgb(${shadeColor(numbers.length > 1 ? n / (numbers.length - 1) : 0).join(' ')})`, width: numbers.length > 20 ? 1 : 1.6 }; }).reverse();
      note.textContent = `${lines.length < with_.length ? `The best ${lines.length} of ${with_.length.toLocaleString('en')} selected trials` : `${lines.length} selected trials`}, blue the best. A curve under the mouse is marked everywhere, click it to open its trial; drag to zoom, double-click for all.`;
      if (plot) plot.set(lines);
      else { plot = curvePlot(host, lines, { labelX: 'report', labelY: metric ? metric.label : 'value', wholeX: true, onFocus: onHover, onPick: (row) => onPick(numberOf(row)) }); saveTools(part.tools, 'curves', () => plot.picture(), () => plot.numbers()); }
    },
    hover(row) { if (plot) plot.focus(row); },
  };
}

// The rows with the least values, in their order, without sorting all of them; NaN counts as the largest.
function leastRows(rows, value, most) {
  const kept = [];
  for (const row of rows) {
    const own = value(row);
    if (Number.isNaN(own) || (kept.length === most && own >= kept[most - 1][0])) continue;
    let at = kept.length;
    while (at > 0 && kept[at - 1][0] > own) at--;
    kept.splice(at, 0, [own, row]);
    if (kept.length > most) kept.pop();
  }
  return kept.map(([, row]) => row);
}

// ---- the table: only the rows in view are in the page ------------------------------------------------------------------
const ROW_HEIGHT = 29;

function tableCard(part, { study, view, onHover, onPick, togglePin }) {
  const box = element('div', 'virtual'), node = element('table'), head = element('thead'), body = element('tbody');
  box.tabIndex = 0;
  node.append(head, body);
  box.append(node);
  part.node.append(element('p', 'hint', 'Click a trial to open it, the pin to compare it with others; click a head to sort.'), box);
  let rows = [], columns = [], headState = '';
  function drawHead() {
    const line = element('tr');
    for (const [key, text] of [['', ''], ['number', 'trial'], ...columns.map((column) => [column.key, column.label])]) {
      const cell = element('th', key && key !== 'outcome' ? 'num' : '');
      cell.scope = 'col';
      const isSorted = view.sort.replace(/^-/, '') === key && key;
      cell.setAttribute('aria-sort', isSorted ? (view.sort.startsWith('-') ? 'descending' : 'ascending') : 'none');
      if (key) cell.append(button(text + (isSorted ? (view.sort.startsWith('-') ? ' ▾' : ' ▴') : ''), () => self.onSort(key)));
      line.append(cell);
    }
    head.replaceChildren(line);
  }
  const self = {
    onSort: null,
    show(next) {
      rows = next;
      columns = study().columns;
      const state = `${view.sort} ${columns.map((column) => column.key).join()}`;
      if (state !== headState) { headState = state; drawHead(); }
      node.setAttribute('aria-rowcount', rows.length);
      draw();
    },
    mark: () => { for (const line of body.querySelectorAll('tr[data-row]')) markLine(line); },
    step(by) {
      const at = rows.findIndex((row) => study().number[row] === view.trial), next = clamp(at + by, 0, rows.length - 1);
      if (!rows.length) return;
      onPick(study().number[rows[next]]);
      const top = next * ROW_HEIGHT;
      if (top < box.scrollTop || top > box.scrollTop + box.clientHeight - 3 * ROW_HEIGHT) box.scrollTop = top - box.clientHeight / 2;
    },
  };
  function markLine(line) {
    const row = Number(line.dataset.row), number = study().number[row];
    line.classList.toggle('hovered', row === view.hovered);
    line.classList.toggle('open', number === view.trial);
    line.classList.toggle('pinned', view.pins.includes(number));
  }
  function draw() {
    const first = Math.max(Math.floor(box.scrollTop / ROW_HEIGHT) - 6, 0), last = Math.min(first + Math.ceil(430 / ROW_HEIGHT) + 14, rows.length);
    const lines = [];
    const pad = (height) => { const line = element('tr', 'pad'), cell = element('td'); cell.colSpan = columns.length + 2; cell.style.height = `${height}px`; line.append(cell); return line; };
    if (first) lines.push(pad(first * ROW_HEIGHT));
    for (let n = first; n < last; n++) lines.push(lineOf(rows[n]));
    if (last < rows.length) lines.push(pad((rows.length - last) * ROW_HEIGHT));
    if (!rows.length) { const line = element('tr'), cell = element('td', 'soft', 'No trial passes these filters.'); cell.colSpan = columns.length + 2; line.append(cell); lines.push(line); }
    body.replaceChildren(...lines);
  }
  function lineOf(row) {
    const line = element('tr'), number = study().number[row], pin = element('td', 'pin');
    line.dataset.row = row;
    pin.append(button('⚲', (event) => { event.stopPropagation(); togglePin(number); }, `Compare trial ${number}`));
    const name = element('td', 'num');
    name.append(button(String(number), (event) => { event.stopPropagation(); onPick(number); }, `Open trial ${number}`));
    line.append(pin, name, ...columns.map((column) => { const cell = element('td', column.key === 'outcome' ? `outcome o-${column.labels[column.values[row]].replace(/ /g, '-')}` : 'num', cellText(column, row)); if (Number.isNaN(column.values[row])) cell.classList.add('none'); return cell; }));
    line.addEventListener('mouseenter', () => onHover(row));
    line.addEventListener('mouseleave', () => onHover(null));
    line.addEventListener('click', () => onPick(number));
    markLine(line);
    return line;
  }
  let frame = 0;
  box.addEventListener('scroll', () => { cancelAnimationFrame(frame); frame = requestAnimationFrame(draw); });
  return self;
}
