// A plan: its promise, time against memory, its schedule, and the planners that were asked.
const PLAN_COLORS = { forward: 'forward', sweep: 'data', recompute: 'job', backward: 'backward', update: 'update', move: 'used' };

function planSection(host, id, document_) {
  const one = document_.body;
  host.append(element('h1', '', document_.title), element('p', `sentence${one.fits ? '' : ' bad'}`, one.sentence));
  const words = [['planner', one.solver], ['budget', one.budget_bytes === null ? 'none: it fits as it is' : bytesText(one.budget_bytes)], ['peak as promised', bytesText(one.peak_bytes)], ['peak with everything kept', bytesText(one.plain_peak_bytes)], ['time of a step', `${secondsText(one.seconds)} in place of ${secondsText(one.plain_seconds)} (${one.time_source})`], ['of which computed again', secondsText(one.recompute_seconds)], ['waits for the link', one.moved_bytes ? secondsText(one.stall_seconds) : ''], ['moved, one way', one.moved_bytes ? bytesText(one.moved_bytes) : ''], ['no plan is faster than', `${secondsText(one.lower_bound_seconds)} (${one.bound_of}); this one is at most ${(one.gap * 100).toFixed(1)} % above`], ['smallest budget', bytesText(one.smallest_budget_bytes)]];
  if (one.proof) words.push(['proof', one.proof.failure || `${one.proof.num_compared} values compared${one.proof.differing && one.proof.differing.length ? `, ${one.proof.differing.length} differ` : ', all the same'}; measured peak ${one.proof.measured_peak_bytes ? bytesText(one.proof.measured_peak_bytes) : 'unknown'}`]);
  else if (one.unproven_because) words.push(['proof', `none: ${one.unproven_because}`]);
  const { loop } = one;
  if (loop) {
    const size = (bytes) => (bytes === null || bytes === undefined ? 'unknown' : bytesText(bytes));
    words.push(['in the training', `${size(loop.measured_peak_bytes)}, measured; highest of ${loop.num_measured || 0} measured of ${loop.num_passes || 0} passes${loop.num_over_budget ? `, ${loop.num_over_budget} above the budget` : ''}`], ['before there was a plan', `${size(loop.first_peak_bytes)}, measured`], ['whole process', `${size(loop.process_peak_bytes)}, measured; with Python and libraries`], ['fitting took', `${secondsText(loop.fitting_seconds || 0)} of ${secondsText(loop.seconds || 0)}; ${loop.num_plans} plan${loop.num_plans === 1 ? '' : 's'}`], ['the training ended', loop.ended || '']);
  }
  const head = card('Promise', 'promise');
  head.node.append(facts(words));
  host.append(head.node);
  trade(host, one);
  gantt(host, one);
  const binding = card(`What sets the peak: ${one.binding.where}`, 'binding');
  binding.node.append(table(['part', '>bytes'], one.binding.parts.map((part) => [part.name, bytesText(part.num_bytes)])), element('p', 'hint', `${bytesText(one.binding.unavoidable_bytes)} of it are there under every plan${one.binding.a_plan_helps ? '' : ': no plan lowers this moment'}.`));
  host.append(binding.node);
  if (one.decisions.length) { const part = card('Decisions', 'decisions'); part.node.append(table(['decision', '>peak saved', '>bytes freed', '>costs'], one.decisions.map((each) => [each.what, bytesText(each.saved_bytes), bytesText(each.spared_bytes ?? 0), secondsText(each.paid_seconds)]))); host.append(part.node); }
  if (one.candidates.length) { const part = card('Planners side by side', 'candidates'); part.node.append(table(['planner', 'fits', '>peak', '>time', '>moved', 'reason'], one.candidates.map((each) => [each.solver, each.fits ? 'yes' : 'no', each.peak_bytes === null ? '-' : bytesText(each.peak_bytes), each.seconds === null ? '-' : secondsText(each.seconds), each.moved_bytes ? bytesText(each.moved_bytes) : '-', each.reason || '']))); host.append(part.node); }
  if (one.levers.length) { const part = card('Other levers', 'levers'); part.node.append(table(['lever', '>peak', '>time', '>smallest budget', 'price'], one.levers.map((each) => [each.name, each.peak_bytes === null ? each.reason || '-' : bytesText(each.peak_bytes), each.seconds === null ? '-' : secondsText(each.seconds), bytesText(each.smallest_budget_bytes), each.price]))); host.append(part.node); }
  if (one.notes.length) { const part = card('Notes', 'remarks'); part.node.append(bullets(one.notes)); host.append(part.node); }
}

function trade(host, one) {
  const points = [...one.frontier].sort((a, b) => a.peak_bytes - b.peak_bytes);
  if (points.length < 2) return;
  const part = card('Time against memory', 'tradeoff'), stage = element('div', 'chart');
  part.node.append(stage);
  host.append(part.node);
  const drawn = drawnChart(stage, () => ({
    grid: { left: 74, right: 24, top: 22, bottom: 46 }, tooltip: { formatter: (item) => `${bytesText(item.data[0])}\n${secondsText(item.data[1])}\n${item.data[2]}` },
    xAxis: axisStyle('peak of a step', 'bytes', byteRange([...points.map((point) => point.peak_bytes), one.budget_bytes ?? one.peak_bytes, one.plain_peak_bytes])), yAxis: axisStyle('', 'seconds'),
    series: [
      { type: 'line', step: 'end', data: points.map((point) => [point.peak_bytes, point.seconds, point.solver]), symbolSize: 6, lineStyle: { color: colorOf('job') }, itemStyle: { color: colorOf('job') }, markLine: { silent: true, symbol: 'none', lineStyle: { color: colorOf('limit'), type: 'dashed' }, label: { formatter: `budget ${bytesText(one.budget_bytes ?? 0)}`, color: colorOf('limit') }, data: one.budget_bytes === null ? [] : [{ xAxis: one.budget_bytes }] } },
      { type: 'scatter', data: [[one.peak_bytes, one.seconds, `this plan: ${one.solver}`]], symbol: 'diamond', symbolSize: 15, itemStyle: { color: colorOf('exact') } },
      { type: 'scatter', data: [[one.plain_peak_bytes, one.plain_seconds, 'everything kept']], symbolSize: 11, itemStyle: { color: colorOf('soft') } },
    ],
  }), 280);
  part.node.append(element('p', 'hint', 'Orange: this plan. Grey: everything kept. Blue: what the planner finds for other budgets.'));
  saveTools(part.tools, 'tradeoff', drawn.picture, () => [['peak (bytes)', 'seconds', 'planner'], points.map((point) => [point.peak_bytes, point.seconds, point.solver])]);
}

function gantt(host, one) {
  const row = columnOf(one.gantt.row), start = columnOf(one.gantt.start), end = columnOf(one.gantt.end), name = columnOf(one.gantt.name), kind = columnOf(one.gantt.kind);
  if (!row.length) return;
  const part = card('Schedule of a step', 'schedule'), stage = element('div', 'chart'), legend = element('p', 'legend');
  part.node.append(stage, legend);
  host.append(part.node);
  const used = [...new Set(row)].sort(), rows = used.map((number) => one.gantt.rows[number]), bytes = columnOf(one.memory.bytes), seconds = columnOf(one.memory.seconds), until = columnOf(one.memory.end_seconds);
  const items = Array.from(row, (each, n) => [used.indexOf(each), start[n], end[n], one.gantt.name.labels[name[n]], one.gantt.kind.labels[kind[n]]]);
  const curve = Array.from(seconds, (each, n) => [[each, bytes[n]], [until[n], bytes[n]]]).flat();
  legend.replaceChildren(...[...new Set(items.map((item) => item[4]))].map((each) => { const item = element('span'), swatch = element('span', 'swatch block'); swatch.style.color = `var(--${PLAN_COLORS[each] || 'soft'})`; swatch.style.opacity = 1; item.append(swatch, each); return item; }));
  const drawn = drawnChart(stage, () => ({
    tooltip: { formatter: (item) => (item.seriesType === 'custom' ? `${item.data[4]} ${item.data[3]}\n${secondsText(item.data[1])} to ${secondsText(item.data[2])}` : `${bytesText(item.data[1])} at ${secondsText(item.data[0])}`) },
    grid: [{ left: 130, right: 24, top: 14, height: 34 * rows.length }, { left: 130, right: 24, top: 34 * rows.length + 34, height: 120 }],
    xAxis: [{ ...axisStyle('', 'seconds'), gridIndex: 0, min: 0, max: Math.max(...end), axisLabel: { show: false } }, { ...axisStyle('', 'seconds'), gridIndex: 1, min: 0, max: Math.max(...end) }],
    yAxis: [{ type: 'category', inverse: true, data: rows, gridIndex: 0, axisLabel: { color: colorOf('ink') }, axisLine: { lineStyle: { color: colorOf('soft') } } }, { ...axisStyle('', 'bytes', byteRange([...bytes, one.budget_bytes ?? 0], 0)), gridIndex: 1 }],
    dataZoom: [{ type: 'inside', xAxisIndex: [0, 1], filterMode: 'none' }],
    series: [
      { type: 'custom', xAxisIndex: 0, yAxisIndex: 0, encode: { x: [1, 2], y: 0 }, data: items, renderItem: (params, api) => { const from = api.coord([api.value(1), api.value(0)]), to = api.coord([api.value(2), api.value(0)]); return { type: 'rect', shape: { x: from[0], y: from[1] - 12, width: Math.max(to[0] - from[0], 1), height: 24 }, style: { fill: colorOf(PLAN_COLORS[items[params.dataIndex][4]] || 'soft'), stroke: colorOf('card'), lineWidth: 0.6 } }; } },
      { type: 'line', xAxisIndex: 1, yAxisIndex: 1, data: curve, showSymbol: false, lineStyle: { color: colorOf('job'), width: 1.4 }, areaStyle: { color: colorOf('job'), opacity: 0.15 }, markLine: { silent: true, symbol: 'none', lineStyle: { color: colorOf('limit'), type: 'dashed' }, label: { show: false }, data: one.budget_bytes === null ? [] : [{ yAxis: one.budget_bytes }] } },
    ],
  }), 34 * rows.length + 190);
  part.node.append(element('p', 'hint', `Above: what is computed and moved when${items.some((item) => item[4] === 'sweep') ? ' (a sweep is a forward that keeps only what it ends with)' : ''}; below: the memory of it${one.budget_bytes === null ? '' : ', with the budget as the red line'}. The wheel zooms.`));
  saveTools(part.tools, 'schedule', drawn.picture, () => [['row', 'kind', 'name', 'start (seconds)', 'end (seconds)'], items.map((item) => [rows[item[0]], item[4], item[3], item[1], item[2]])]);
}
