// A prediction: its peaks by level against the limit, who is alive there, the sweep, savings and assumptions.
function predictionSection(host, id, document_) {
  const one = document_.body;
  host.append(element('h1', '', document_.title), element('p', `sentence${one.fits === false ? ' bad' : ''}`, one.sentence));
  if (!one.classes) { drawPrediction(host, one); return; }
  const wanted = Number(currentState().ranks ?? one.fullest), shown = one.classes[wanted] ? wanted : one.fullest;
  ranksCard(host, one, shown);
  const each = one.classes[shown].prediction;
  host.append(element('h2', 'rank-head', `${one.classes[shown].num_ranks > 1 ? 'Ranks' : 'Rank'} ${one.classes[shown].ranks}`), element('p', `sentence${each.fits === false ? ' bad' : ''}`, each.sentence));
  drawPrediction(host, each);
}

// A bar for every kind of ranks; choosing one shows its prediction below.
function ranksCard(host, one, shown) {
  const part = card('Every rank', 'ranks'), choice = element('select'), limit = one.classes[0].prediction.memory_limit_bytes ?? null;
  choice.setAttribute('aria-label', 'Which ranks are shown below');
  choice.append(...one.classes.map((each, n) => { const option = element('option', '', `show rank ${each.ranks}`); option.value = n; return option; }));
  choice.value = shown;
  choice.addEventListener('change', () => { keepState({ ranks: choice.value, device: '', at: '' }); show(); });
  if (one.classes.length > 1) part.tools.append(choice);
  const rows = one.classes.map((each, n) => ({ name: `${each.num_ranks > 1 ? 'ranks' : 'rank'} ${each.ranks}${n === one.fullest && one.classes.length > 1 ? ', the fullest' : ''}`, text: `${bytesText(each.num_bytes)}${each.prediction.fits === false ? ', too much' : ''}`, parts: [...each.prediction.at_peak.by_category].map((share) => ({ name: share.name, value: share.num_bytes, color: CATEGORY_COLORS[share.name] || 'soft' })), title: each.why, meaning: each.why, marks: limit ? [{ value: limit, title: `limit ${bytesText(limit)}` }] : [] }));
  barRows(part, 'ranks', rows, { scale: barScale(rows, limit, 3), heads: ['ranks', 'category', 'bytes'] });
  part.node.append(element('p', 'hint', `Bars: tensors at the peak by category; numbers: the ${one.level} peak.${limit ? ` limit: ${bytesText(limit)}` : ''}`));
  if (one.asked_at.length) part.node.append(element('p', 'hint', `The job itself asks for its rank (${one.asked_at.join(', ')}): ranks that were not run are taken to go the same way.`));
  host.append(part.node);
}

function drawPrediction(host, one) {
  host.append(element('p', 'soft', `${one.route}, torch ${one.torch_version}, ${one.num_steps} steps${Object.keys(one.settings || {}).length ? `, ${Object.entries(one.settings).map(([name, value]) => `${name}=${value}`).join(' ')}` : ''}`));
  levelsCard(host, one);
  tracedCards(host, one.traced);
  changesCard(host, one.changes);
  if (one.savings && one.savings.length) { const part = card('What single changes would save', 'savings'); part.node.append(table(['change', '>saves', '>then', 'how'], one.savings.map((saving) => [saving.change, bytesText(saving.saved_bytes), bytesText(saving.peak_bytes), saving.how]))); host.append(part.node); }
  sweepCard(host, one);
  sharesCard(host, one);
  if (one.assumptions && one.assumptions.length) { const part = card('Assumed', 'assumed'); part.node.append(table(...assumedTable(one.assumptions), 'stacked')); host.append(part.node); }
}

// Only the columns that say something.
function assumedTable(assumptions) {
  const hasLines = assumptions.some((each) => each.line), hasCounts = assumptions.some((each) => (each.count ?? 1) > 1);
  return [['kind', 'what', ...(hasLines ? ['line'] : []), ...(hasCounts ? ['>times'] : [])], assumptions.map((each) => [each.kind, each.text, ...(hasLines ? [each.line || ''] : []), ...(hasCounts ? [each.count ?? 1] : [])])];
}

function levelsCard(host, one) {
  const part = card('Peaks by level', 'levels'), limit = one.memory_limit_bytes ?? null, value = (figure) => figure.value ?? figure.high ?? null;
  const rows = one.levels.map((level) => {
    const size = value(level.figure), { low, high, method, reason } = level.figure, isBound = level.figure.value === null || level.figure.value === undefined;
    return { name: level.name, parts: size === null ? [] : [{ name: 'predicted', value: size, color: 'update', hatched: true }], low, high, marks: limit ? [{ value: limit, title: `limit ${bytesText(limit)}` }] : [],
      text: size === null ? `unknown: ${reason}` : `${isBound ? 'up to ' : ''}${bytesText(size)}`, title: `${level.meaning}${method ? `; ${method}` : ''}`, meaning: level.meaning };
  });
  const scale = barScale(rows, limit, 3);
  barRows(part, 'levels', rows, { scale, numbers: () => [['level', 'bytes', 'low', 'high', 'source', 'method'], one.levels.map((level) => [level.name, level.figure.value, level.figure.low, level.figure.high, level.figure.source, level.figure.method])] });
  if (limit) part.node.append(element('p', 'hint', `limit: ${bytesText(limit)}${limit <= scale ? ', the red line' : ''}`));
  if (one.failed) part.node.append(element('p', 'hint', `As PyTorch would report it: ${one.failed.message}`));
  host.append(part.node);
}

function sweepCard(host, one) {
  const { sweep } = one;
  if (!sweep || !sweep.points.length) return;
  const part = card(`Peak over ${sweep.setting}`, 'sweep'), stage = element('div', 'chart'), peak = Math.max(...sweep.points.map((point) => point.peak_bytes)), beyond = one.memory_limit_bytes > 3 * peak, limit = beyond ? null : one.memory_limit_bytes;
  part.node.append(stage, element('p', 'hint', `The ${sweep.level} peak. ${beyond ? `The limit of ${bytesText(one.memory_limit_bytes)} is beyond this picture: the largest takes ${((100 * peak) / one.memory_limit_bytes).toFixed(1)} % of it. ` : ''}${sweep.largest_fitting !== null && sweep.largest_fitting !== undefined ? `The largest that fits is ${sweep.largest_fitting}. ` : ''}${sweep.reason ? `${sweep.reason}. ` : ''}Filled: traced; hollow: between traced ones.`));
  host.append(part.node);
  const drawn = drawnChart(stage, () => ({
    grid: { left: 84, right: 24, top: 20, bottom: 46 }, tooltip: { formatter: (item) => `${sweep.setting} ${item.data[0]}\n${bytesText(item.data[1])}, ${item.data[2]}` },
    xAxis: axisStyle(sweep.setting, ''), yAxis: axisStyle('', 'bytes', byteRange([...sweep.points.map((point) => point.peak_bytes), ...(limit ? [limit] : [])], 0)),
    series: [{ type: 'line', data: sweep.points.map((point) => [point.value, point.peak_bytes, point.how]), symbol: 'circle', symbolSize: 8, lineStyle: { color: colorOf('update'), type: 'dashed' }, itemStyle: { color: (item) => (item.data[2] === 'traced' ? colorOf('update') : colorOf('card')), borderColor: colorOf('update'), borderWidth: 2 },
      markLine: limit ? { silent: true, symbol: 'none', label: { formatter: `limit ${bytesText(limit)}`, position: 'insideStartTop', color: colorOf('limit') }, lineStyle: { color: colorOf('limit'), type: 'dashed' }, data: [{ yAxis: limit }] } : undefined }],
  }), 300);
  saveTools(part.tools, 'sweep', drawn.picture, () => [[sweep.setting, 'peak (bytes)', 'how', 'fits'], sweep.points.map((point) => [point.value, point.peak_bytes, point.how, point.fits])]);
}

const MOST_SHARES = 20;

function sharesCard(host, one) {
  const at = one.at_peak, part = card('Alive at the peak', 'shares'), box = element('div', 'columns');
  part.node.append(element('p', 'hint', `Tensors at event ${at.event.toLocaleString('en')}: step ${at.step}, ${at.phase}. Each list adds up to the peak.`), box);
  for (const [name, title] of [['by_category', 'category'], ['by_module', 'layer'], ['by_line', 'line'], ['by_operator', 'operator']]) {
    const shares = largestShares([...at[name]]);
    if (shares.length) box.append(table([title, '>bytes', '>tensors'], shares.map((share) => [share.name || '(none)', bytesText(share.num_bytes), share.num_tensors.toLocaleString('en')])));
  }
  host.append(part.node);
}

// The largest, and what all the others come to in one row.
function largestShares(shares) {
  shares.sort((a, b) => b.num_bytes - a.num_bytes);
  if (shares.length <= MOST_SHARES + 1) return shares;
  const rest = shares.slice(MOST_SHARES), sum = (key) => rest.reduce((total, share) => total + share[key], 0);
  return [...shares.slice(0, MOST_SHARES), { name: `${rest.length} others`, num_bytes: sum('num_bytes'), num_tensors: sum('num_tensors') }];
}
