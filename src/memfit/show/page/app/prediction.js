// A prediction: its peaks by level against the limit, who is alive there, the sweep, savings and assumptions.
function predictionSection(host, id, document_) {
  const one = document_.body;
  host.append(element('h1', '', document_.title), element('p', `sentence${one.fits === false ? ' bad' : ''}`, one.sentence));
  host.append(element('p', 'soft', `${one.route}, torch ${one.torch_version}, ${one.num_steps} steps${Object.keys(one.settings || {}).length ? `, ${Object.entries(one.settings).map(([name, value]) => `${name}=${value}`).join(' ')}` : ''}`));
  levelsCard(host, one);
  tracedCards(host, one.traced);
  changesCard(host, one.changes);
  if (one.savings && one.savings.length) { const part = card('What single changes would save', 'savings'); part.node.append(table(['change', '>saves', '>then', 'how'], one.savings.map((saving) => [saving.change, bytesText(saving.saved_bytes), bytesText(saving.peak_bytes), saving.how]))); host.append(part.node); }
  sweepCard(host, one);
  sharesCard(host, one);
  if (one.assumptions && one.assumptions.length) { const part = card('Assumed', 'assumed'); part.node.append(table(['kind', 'what', 'line', '>times'], one.assumptions.map((each) => [each.kind, each.text, each.line || '', each.count ?? 1]))); host.append(part.node); }
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
  host.append(part.node);
}

function sweepCard(host, one) {
  const { sweep } = one;
  if (!sweep || !sweep.points.length) return;
  const part = card(`Peak over ${sweep.setting}`, 'sweep'), stage = element('div', 'chart'), limit = one.memory_limit_bytes;
  part.node.append(stage, element('p', 'hint', `${sweep.level}; ${sweep.largest_fitting !== null && sweep.largest_fitting !== undefined ? `the largest that fits is ${sweep.largest_fitting}. ` : ''}${sweep.reason || ''} Filled: traced; hollow: between traced ones.`));
  host.append(part.node);
  const drawn = drawnChart(stage, () => ({
    grid: { left: 84, right: 24, top: 20, bottom: 46 }, tooltip: { formatter: (item) => `${sweep.setting} ${item.data[0]}\n${bytesText(item.data[1])}, ${item.data[2]}` },
    xAxis: axisStyle(sweep.setting, ''), yAxis: axisStyle('', 'bytes', byteRange([...sweep.points.map((point) => point.peak_bytes), ...(limit ? [limit] : [])], 0)),
    series: [{ type: 'line', data: sweep.points.map((point) => [point.value, point.peak_bytes, point.how]), symbol: 'circle', symbolSize: 8, lineStyle: { color: colorOf('update'), type: 'dashed' }, itemStyle: { color: (item) => (item.data[2] === 'traced' ? colorOf('update') : colorOf('card')), borderColor: colorOf('update'), borderWidth: 2 },
      markLine: limit ? { silent: true, symbol: 'none', label: { formatter: `limit ${bytesText(limit)}`, position: 'insideStartTop', color: colorOf('limit') }, lineStyle: { color: colorOf('limit'), type: 'dashed' }, data: [{ yAxis: limit }] } : undefined }],
  }), 300);
  saveTools(part.tools, 'sweep', drawn.picture, () => [[sweep.setting, 'peak (bytes)', 'how', 'fits'], sweep.points.map((point) => [point.value, point.peak_bytes, point.how, point.fits])]);
}

function sharesCard(host, one) {
  const at = one.at_peak, part = card('Alive at the peak', 'shares'), box = element('div', 'wide-pair');
  part.node.append(element('p', 'hint', `Tensors at event ${at.event.toLocaleString('en')}: step ${at.step}, ${at.phase}. Each list adds up to the peak.`), box);
  for (const [name, title] of [['by_category', 'category'], ['by_module', 'layer'], ['by_line', 'line'], ['by_operator', 'operator']]) {
    const shares = [...at[name]].sort((a, b) => b.num_bytes - a.num_bytes).slice(0, 20);
    if (shares.length) box.append(table([title, '>bytes', '>tensors'], shares.map((share) => [share.name || '(none)', bytesText(share.num_bytes), share.num_tensors.toLocaleString('en')])));
  }
  host.append(part.node);
}
