// A pipeline plan: its promise, what every rank and link does in a step, the memory of ranks over time and by cause.
const PIPE_COLORS = { forward: 'forward', backward: 'backward', weight: 'update', send: 'data', 'send back': 'used' };
const PIPE_WORDS = { forward: 'forward', backward: 'backward', weight: 'weights', send: 'activations sent', 'send back': 'gradients sent' };
const CAUSE_COLORS = { weights: 'c-parameter', gradients: 'c-gradient', 'optimizer state': 'c-state', 'weight versions': 'c-buffer', 'activations in flight': 'c-activation', 'outputs of the last stage': 'c-input', 'buffers of transfers': 'c-workspace', 'working memory': 'c-temporary' };

function pipelineSection(host, id, document_) {
  const one = document_.body, rate = 1 / one.period_seconds, speed = one.link.bytes_per_second;
  host.append(element('h1', '', document_.title), element('p', `sentence${one.fits ? '' : ' bad'}`, one.sentence));
  const promise = card('Promise', 'promise');
  promise.node.append(facts([
    ['planned by', `${one.planner}, ${one.schedule}`], [one.schedule === 'an order of its own' ? 'a micro-batch every' : 'busiest rank or link', `${secondsText(one.period_seconds)}${one.schedule === 'an order of its own' ? `, ${rate.toPrecision(4)} a second${one.micro_batch_size ? `, ${(rate * one.micro_batch_size).toPrecision(4)} examples a second` : ''}` : ' for each micro-batch'}`],
    ['the best of', one.optimal_among], ['a step', `${secondsText(one.step_seconds)}, ranks idle ${valueText(Math.min(...one.idle_shares), 'ratio')} to ${valueText(Math.max(...one.idle_shares), 'ratio')} of it`],
    ['weights', { flush: 'one version: all micro-batches end before the update', '2bw': 'two versions', stash: 'one version for each micro-batch' }[one.weight_rule]], ['link', `${Number((speed / 1e9).toPrecision(4))} GB/s, ${one.link.full_duplex ? 'both ways at once' : 'one way at a time'} (${one.link.source || 'assumed'})`],
  ]));
  host.append(promise.node);
  pipeSchedule(host, one);
  pipeHeat(host, one);
  pipeRanks(host, one);
  if (one.reasons.length) { const part = card(`Why rank ${one.fullest_rank} is the fullest`, 'reasons'); part.node.append(bullets(one.reasons)); host.append(part.node); }
  const stages = card('Stages', 'stages');
  stages.node.append(table(['>stage', '>rank', '>layers', '>compute', '>held a micro-batch', '>sends', '>in flight', 'activations', 'first layer', 'last layer'], one.stages.map((each, n) => [n, each.num_replicas > 1 ? `${each.rank}-${each.rank + each.num_replicas - 1}` : each.rank, `${each.first_layer}-${each.last_layer}`, secondsText(each.seconds), bytesText(each.held_bytes), each.sent_bytes === null ? '-' : bytesText(each.sent_bytes), each.in_flight, each.choice === 'keep' ? 'kept' : each.choice, each.first_name, each.last_name])));
  host.append(stages.node);
  if (one.baselines.length) { const part = card('Other cuts, each with its best schedule within the same memory', 'baselines'); part.node.append(table(['cut by', '>period', '>of this plan', '>fullest rank', 'stages end with layer'], one.baselines.map((each) => [each.planner, each.period_seconds ? secondsText(each.period_seconds) : 'does not fit', each.period_seconds ? `x ${(each.period_seconds / one.period_seconds).toFixed(2)}` : '-', each.fullest_bytes ? bytesText(each.fullest_bytes) : '-', `${(each.stages || []).map((stage) => stage[1]).join(', ')}${each.reason ? ` (${each.reason})` : ''}`]))); host.append(part.node); }
  if (one.notes.length) { const part = card('Notes', 'remarks'); part.node.append(bullets(one.notes)); host.append(part.node); }
}

function pipeSchedule(host, one) {
  const part = card(`Schedule of a step of ${one.num_micro_batches} micro-batches`, 'schedule'), stage = element('div', 'chart'), legend = element('p', 'legend');
  host.append(part.node);
  if (!one.gantt) { part.node.append(element('p', 'hint', 'The step has too many operations to draw each of them; the memory below is of all of them.')); return; }
  part.node.append(stage, legend);
  const { rows } = one.gantt, row = columnOf(one.gantt.row), kind = columnOf(one.gantt.kind), kinds = one.gantt.kind.labels, place = columnOf(one.gantt.stage), micro = columnOf(one.gantt.micro_batch), start = columnOf(one.gantt.start), seconds = columnOf(one.gantt.seconds);
  const items = Array.from(row, (each, n) => [each, start[n], start[n] + seconds[n], micro[n], place[n], kinds[kind[n]]]), isRank = rows.map((name) => name.startsWith('rank'));
  const high = clamp(rows.length * 22, 120, 900), name = (item) => `${PIPE_WORDS[item[5]]} of micro-batch ${item[3]}, stage ${item[4]}\n${rows[item[0]]}, ${secondsText(item[1])} to ${secondsText(item[2])}`;
  legend.replaceChildren(...kinds.filter((_, n) => kind.includes(n)).map((each) => { const item = element('span'), swatch = element('span', 'swatch block'); swatch.style.color = `var(--${PIPE_COLORS[each]})`; swatch.style.opacity = 1; item.append(swatch, PIPE_WORDS[each]); return item; }));
  const drawn = drawnChart(stage, () => ({
    tooltip: { formatter: (item) => name(items[item.dataIndex]) }, grid: { left: 84, right: 20, top: 10, bottom: 34 },
    xAxis: { ...axisStyle('', 'seconds'), min: 0, max: one.step_seconds }, yAxis: { type: 'category', inverse: true, data: rows, axisLabel: { color: colorOf('ink'), formatter: (text) => (text.startsWith('rank') ? text : ''), interval: 'auto' }, axisTick: { show: false }, axisLine: { lineStyle: { color: colorOf('soft') } } },
    dataZoom: [{ type: 'inside', xAxisIndex: 0, filterMode: 'none' }],
    series: [{ type: 'custom', encode: { x: [1, 2], y: 0 }, data: items.map((item) => item.slice(0, 3)), renderItem: (params, api) => {
      const item = items[params.dataIndex], from = api.coord([item[1], item[0]]), to = api.coord([item[2], item[0]]), tall = api.size([0, 1])[1] * (isRank[item[0]] ? 0.86 : 0.4), wide = Math.max(to[0] - from[0], 1);
      const box = { type: 'rect', shape: { x: from[0], y: from[1] - tall / 2, width: wide, height: tall }, style: { fill: colorOf(PIPE_COLORS[item[5]]), stroke: colorOf('card'), lineWidth: 0.5 } };
      if (!isRank[item[0]] || wide < 16 || tall < 11) return box;
      return { type: 'group', children: [box, { type: 'text', silent: true, style: { x: from[0] + wide / 2, y: from[1], text: String(item[3]), align: 'center', verticalAlign: 'middle', fontSize: Math.min(11, tall - 2), fill: colorOf('tree-ink') } }] };
    } }],
  }), high + 50);
  part.node.append(element('p', 'hint', 'A row for each rank, transfers thin between two ranks; numbers are micro-batches, gaps are idle. The wheel zooms.'));
  saveTools(part.tools, 'schedule', drawn.picture, () => [['where', 'what', 'stage', 'micro-batch', 'start (seconds)', 'end (seconds)'], items.map((item) => [rows[item[0]], item[5], item[4], item[3], item[1], item[2]])]);
}

// Ranks x time: how full every rank is, as a share of its limit where there is one.
function pipeHeat(host, one) {
  const { columns, ranks } = one.heat, bytes = columnOf(one.heat.bytes);
  if (!ranks.length) return;
  const part = card('Memory of every rank over the step', 'heat'), stage = element('div', 'chart'), limits = one.ranks.map((rank) => rank.limit_bytes);
  const width = one.step_seconds / columns, middle = (n) => secondsText((n % columns + 0.5) * width), largest = bytes.reduce((most, value) => Math.max(most, value), 1);
  // The round moment that lies in a column, where there is one.
  const every = niceStep(one.step_seconds / 8), roundAt = (n) => { const last = Math.floor((n + 1) * (width / every) - 1e-9) * every; return n === 0 ? 0 : last >= n * width ? last : null; };
  const cells = Array.from(bytes, (value, n) => [n % columns, Math.floor(n / columns), value]);
  part.node.append(stage);
  host.append(part.node);
  const isNarrow = () => stage.clientWidth < 560;
  const drawn = drawnChart(stage, () => ({
    tooltip: { formatter: ({ data }) => `rank ${ranks[data[1]]}, ${middle(data[0])}\n${bytesText(data[2])}${limits[data[1]] ? `, ${valueText(data[2] / limits[data[1]], 'ratio')} of its limit` : ''}` },
    grid: isNarrow() ? { left: 60, right: 16, top: 10, bottom: 76 } : { left: 84, right: 110, top: 10, bottom: 34 },
    xAxis: { type: 'category', data: Array.from({ length: columns }, (_, n) => middle(n)), axisLabel: { color: colorOf('soft'), hideOverlap: true, interval: (n) => roundAt(n) !== null, formatter: (_, n) => secondsText(roundAt(n) ?? 0) }, axisTick: { show: false } }, yAxis: { type: 'category', inverse: true, data: ranks.map((rank) => `rank ${rank}`), axisLabel: { color: colorOf('ink') }, axisTick: { show: false } },
    visualMap: { min: 0, max: largest, calculable: false, ...(isNarrow() ? { orient: 'horizontal', left: 'center', bottom: 0 } : { orient: 'vertical', right: 4, top: 'middle' }), itemHeight: 110, textStyle: { color: colorOf('soft') }, formatter: (value) => bytesText(value), text: [bytesText(largest), '0'], inRange: { color: [colorOf('grid'), colorOf('job')] } },
    series: [{ type: 'heatmap', data: cells, itemStyle: { borderWidth: 0 }, progressive: 20000 }],
  }), clamp(ranks.length * 26, 90, 900) + (isNarrow() ? 100 : 60));
  part.node.append(element('p', 'hint', 'The most that a rank holds in each stretch of the step; the stronger its colour, the fuller it is.'));
  saveTools(part.tools, 'rank-memory', drawn.picture, () => [['rank', 'from (seconds)', 'to (seconds)', 'highest (bytes)'], cells.map(([column, rank, value]) => [ranks[rank], column * width, (column + 1) * width, value])]);
}

function pipeRanks(host, one) {
  const part = card('Memory of every rank by cause', 'ranks'), causes = [...new Set(one.ranks.flatMap((rank) => rank.parts.map((each) => each.name)))], legend = element('p', 'legend');
  const rows = one.ranks.map((rank) => ({ name: `rank ${rank.rank}${rank.rank === one.fullest_rank ? ', the fullest' : ''}`, parts: rank.parts.map((each) => ({ name: each.name, value: each.num_bytes, color: CAUSE_COLORS[each.name] || 'other' })), text: `${bytesText(rank.total_bytes)}${rank.limit_bytes ? ` of ${bytesText(rank.limit_bytes)}` : ''}${rank.fits ? '' : ', too much'}`, marks: rank.limit_bytes ? [{ value: rank.limit_bytes, title: `limit ${bytesText(rank.limit_bytes)}` }] : [] }));
  legend.replaceChildren(...causes.map((each) => { const item = element('span'), swatch = element('span', 'swatch block'); swatch.style.color = `var(--${CAUSE_COLORS[each] || 'other'})`; swatch.style.opacity = 1; item.append(swatch, each); return item; }));
  part.node.append(legend);
  barRows(part, 'ranks', rows, { heads: ['rank', 'cause', 'bytes'] });
  host.append(part.node);
}

function niceStep(span) { const base = 10 ** Math.floor(Math.log10(span)); return [1, 2, 5, 10].map((times) => times * base).find((each) => each >= span); }
