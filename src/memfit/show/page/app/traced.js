// A traced (or predicted) step: tensor bytes by category over its events, and a treemap of what is alive at the cursor's moment.
const MOST_BUCKETS = 900, MOST_PARTS = 40;

function readTraced(traced) {
  const step = { ...traced };
  for (const name of ['start', 'end', 'num_bytes', 'category', 'module', 'operator', 'line', 'event_seconds']) if (traced[name]) { step[name] = columnOf(traced[name]); step[`${name}_labels`] = traced[name].labels; }
  return step;
}

// Bytes of each category after every event, and of all.
function totalsOf(step) {
  const categories = step.category_labels, length = step.num_events + 2, totals = categories.map(() => new Float64Array(length));
  for (let i = 0; i < step.start.length; i++) { const own = totals[step.category[i]]; own[step.start[i]] += step.num_bytes[i]; if (step.end[i] < length) own[step.end[i]] -= step.num_bytes[i]; }
  const all = new Float64Array(length);
  for (const own of totals) { let sum = 0; for (let e = 0; e < length; e++) { sum += own[e]; own[e] = sum; all[e] += sum; } }
  return { totals, all };
}

// Each bucket of events stands as it was at its own highest moment: a stack that was really there, and no peak is lost.
function buckets(all) {
  const size = Math.max(Math.ceil(all.length / MOST_BUCKETS), 1), moments = [];
  for (let first = 0; first < all.length - 1; first += size) { let best = first; for (let e = first; e < Math.min(first + size, all.length - 1); e++) if (all[e] > all[best]) best = e; moments.push(best); }
  return moments;
}

function aliveAt(step, event) {
  const tree = new Map();
  for (let i = 0; i < step.start.length; i++) {
    if (step.start[i] > event || step.end[i] <= event) continue;
    const category = step.category_labels[step.category[i]], module = step.module_labels[step.module[i]] || '(outside of modules)';
    const place = [step.line ? step.line_labels[step.line[i]] : '', step.operator ? step.operator_labels[step.operator[i]] : ''].filter(Boolean).join(', ') || '(not recorded)';
    if (!tree.has(category)) tree.set(category, new Map());
    const modules = tree.get(category);
    if (!modules.has(module)) modules.set(module, new Map());
    const places = modules.get(module);
    places.set(place, (places.get(place) || 0) + step.num_bytes[i]);
  }
  return tree;
}

// The largest parts by name, and the rest as one.
function largest(parts, what) {
  const sorted = parts.sort((a, b) => b.value - a.value), rest = sorted.slice(MOST_PARTS);
  return rest.length > 1 ? [...sorted.slice(0, MOST_PARTS), { name: `${rest.length} smaller ${what}`, value: rest.reduce((sum, part) => sum + part.value, 0) }] : sorted;
}

function treeNodes(tree) {
  return [...tree].map(([category, modules]) => {
    const children = largest([...modules].map(([module, places]) => { const lines = largest([...places].map(([name, value]) => ({ name, value })), 'places'); return { name: module, value: lines.reduce((sum, part) => sum + part.value, 0), children: lines }; }), 'modules');
    return { name: category, value: children.reduce((sum, part) => sum + part.value, 0), itemStyle: { color: categoryColor(category) }, children };
  }).sort((a, b) => b.value - a.value);
}

// What fits into the place of a part: its name, without the outer modules that find no room, since layers differ at their ends; its
// size where there is room for a second line. A place without room for a word has none; the mouse tells all of it.
function placeText(chart, item) {
  const node = chart.getModel().getSeriesByIndex(0).getData().tree.getNodeByDataIndex(item.dataIndex), place = node && node.getLayout(), size = bytesText(item.value);
  if (!place || place.width < 34 || place.height < 19) return '';
  const letters = Math.floor((place.width - 12) / 7), name = nameWithin(item.name, letters);
  return place.height >= 34 && size.length <= letters ? `${name}\n${size}` : name;
}

// blocks.5.mlp.up: 5.mlp.up, mlp.up or up where there is no more room; cut within a word only where its last part is too long.
function nameWithin(name, letters) {
  if (name.length <= letters) return name;
  if (/^[\w.]+$/.test(name)) {
    const parts = name.split('.').filter(Boolean);
    while (parts.length > 1 && parts.join('.').length > letters) parts.shift();
    if (parts.join('.').length <= letters) return parts.join('.');
    name = parts[0];
  }
  return `${name.slice(0, letters - 1)}…`;
}

function tracedCards(host, steps) {
  if (!steps.length) return;
  const part = card(steps[0].source === 'measured' ? 'One step, by what it holds' : 'The predicted steps, by what they hold', 'traced'), tree = card('Alive at this moment', 'alive');
  const pair = element('div', 'wide-pair');
  pair.append(part.node, tree.node);
  host.append(pair);
  const state = currentState();
  let which = clamp(Number(state.device) || 0, 0, steps.length - 1), step, totals, all, moments, peakEvent, event;
  const chosen = element('select');
  steps.forEach((each, n) => { const option = element('option', '', `${each.name}, ${each.device}${each.source === 'measured' ? '' : ` (${each.source})`}`); option.value = n; chosen.append(option); });
  chosen.value = which;
  chosen.addEventListener('change', () => { which = Number(chosen.value); keepState({ device: which || '', at: '' }); load(); build(); });
  if (steps.length > 1) part.tools.append(chosen);
  const stage = element('div', 'chart'), legend = element('p', 'legend'), read = element('p', 'read'), map = element('div', 'chart');
  read.setAttribute('role', 'status');
  stage.tabIndex = 0;
  stage.setAttribute('role', 'img');
  const hint = element('p', 'hint');
  part.node.append(stage, legend, hint);
  tree.node.append(read, map);
  let plot = null, drawn = null, nodes = [];

  function load() {
    step = readTraced(steps[which]);
    ({ totals, all } = totalsOf(step));
    moments = buckets(all);
    peakEvent = 0;
    for (let e = 0; e < all.length - 1; e++) if (all[e] > all[peakEvent]) peakEvent = e;
    event = state.at === undefined || state.at === '' ? peakEvent : clamp(Number(state.at) || 0, 0, all.length - 2);
    hint.textContent = `Move the cursor to see what is alive at that moment; click to keep it. In the map, click a layer to see its lines.${step.num_left_out ? ` ${step.num_left_out.toLocaleString('en')} small storages with ${bytesText(step.left_out_bytes)} in all are left out.` : ''}`;
    nodes = treeNodes(aliveAt(step, event));
  }
  const used = () => step.category_labels.map((name, n) => ({ name, n })).filter(({ n }) => totals[n].some((value) => value > 0));
  const words = (e) => { const mark = [...step.phases].reverse().find((each) => each.start <= e); return mark ? `step ${mark.step}, ${mark.phase}` : ''; };
  function build() {
    if (plot) plot.destroy();
    const order = used(), stacked = [], sums = new Float64Array(moments.length);
    for (const { n } of order) { const line = moments.map((e, k) => { sums[k] += totals[n][e]; return sums[k]; }); stacked.push(line); }
    const series = [{}, ...order.map(({ name }) => ({ stroke: categoryColor(name), fill: categoryColor(name), width: 0.5, points: { show: false }, paths: uPlot.paths.stepped({ align: 1 }) })).reverse()];
    plot = new uPlot({
      width: Math.max(stage.clientWidth, 200), height: 300, legend: { show: false }, padding: [24, 24, 0, 0], cursor: { drag: { x: false, y: false }, points: { show: false } },
      scales: { x: { time: false }, y: { range: (_, low, high) => [0, high * 1.05 || 1] } },
      axes: [{ stroke: colorOf('soft'), grid: { show: false }, ticks: { stroke: colorOf('grid') }, font: '12px system-ui', label: 'allocations and frees, in order', labelSize: 20, labelGap: 2, size: 30, labelFont: '12px system-ui', values: (_, ticks) => ticks.map((tick) => tick.toLocaleString('en')) },
        { stroke: colorOf('soft'), grid: { stroke: colorOf('grid'), width: 1 }, ticks: { stroke: colorOf('grid') }, size: 78, font: '12px system-ui', values: (_, ticks) => ticks.map(tickText), incrs: BYTE_STEPS }],
      series,
      hooks: {
        draw: [(self) => drawMarks(self)],
        setCursor: [(self) => { if (self.cursor.left >= 0 && self.cursor.idx !== null) moveTo(moments[self.cursor.idx], false); }],
      },
    }, [moments, ...stacked.reverse()], stage);
    plot.over.addEventListener('click', () => { keepState({ at: event }); kept = event; });
    plot.over.addEventListener('mouseleave', () => moveTo(kept, true));
    stage.setAttribute('aria-label', `Tensor bytes of ${step.name} by category; peak ${bytesText(all[peakEvent])}`);
    legend.replaceChildren(...order.map(({ name }) => { const item = element('span'), swatch = element('span', 'swatch block'); swatch.style.color = `var(--${CATEGORY_COLORS[name]})`; swatch.style.opacity = 1; item.append(swatch, name); return item; }));
    kept = event;
    moveTo(event, true);
  }
  let kept = 0, frame = 0;
  function drawMarks(self) {
    const pen = self.ctx, scale = devicePixelRatio, { left, top, width, height } = self.bbox;
    pen.save();
    pen.font = `${11.5 * scale}px system-ui, sans-serif`; pen.textAlign = 'left'; pen.textBaseline = 'top';
    let free = -1;
    for (const mark of step.phases) {
      const x = self.valToPos(mark.start, 'x', true);
      pen.strokeStyle = colorOf('soft'); pen.globalAlpha = 0.55; pen.setLineDash([2, 3]); pen.beginPath(); pen.moveTo(x, top); pen.lineTo(x, top + height); pen.stroke(); pen.setLineDash([]); pen.globalAlpha = 1;
      const wide = pen.measureText(mark.phase).width;
      if (x > free && x + wide <= left + width + 22 * scale) { pen.fillStyle = colorOf('soft'); pen.fillText(mark.phase, x + 3, 6); free = x + wide + 12 * scale; }
    }
    const px = self.valToPos(peakEvent, 'x', true), py = self.valToPos(all[peakEvent], 'y', true), text = `peak ${bytesText(all[peakEvent])}`;
    pen.strokeStyle = colorOf('ink'); pen.lineWidth = 1.5 * scale; pen.beginPath(); pen.arc(px, py, 5 * scale, 0, 7); pen.stroke();
    pen.font = `600 ${12 * scale}px system-ui, sans-serif`;
    const wide = pen.measureText(text).width + 10 * scale, from = clamp(px + 9 * scale, left, left + width - wide);
    pen.fillStyle = colorOf('card'); pen.globalAlpha = 0.9; pen.fillRect(from, py + 4 * scale, wide, 18 * scale); pen.globalAlpha = 1; pen.fillStyle = colorOf('ink'); pen.fillText(text, from + 5 * scale, py + 7 * scale);
    pen.restore();
  }
  function moveTo(next, isKept) {
    event = next;
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(() => {
      nodes = treeNodes(aliveAt(step, event));
      const which_ = event === peakEvent ? 'at the peak' : `at event ${event.toLocaleString('en')}`;
      read.textContent = `${bytesText(all[event])} ${which_}${words(event) ? `, ${words(event)}` : ''}: ${nodes.slice(0, 4).map((node) => `${node.name} ${bytesText(node.value)}`).join(', ')}`;
      if (drawn) drawn.draw();
    });
  }
  load();
  build();
  drawn = drawnChart(map, (chart) => ({
    tooltip: { formatter: (item) => `${item.treePathInfo.slice(1).map((each) => each.name).join(' › ')}\n${bytesText(item.value)}, ${((100 * item.value) / (all[event] || 1)).toFixed(1)} %` },
    series: [{ type: 'treemap', name: 'all', data: nodes, roam: false, nodeClick: false, left: 0, right: 0, top: 4, bottom: 26, leafDepth: 2, visibleMin: 200, breadcrumb: { bottom: 0, height: 20, itemStyle: { color: colorOf('grid'), textStyle: { color: colorOf('ink') } } },
      drillDownIcon: '', label: { show: true, position: 'insideTopLeft', lineHeight: 14, padding: [3, 3], formatter: (item) => placeText(chart, item), color: colorOf('tree-ink'), fontSize: 11.5, overflow: 'truncate', ellipsis: '…' }, upperLabel: { show: true, height: 19, color: colorOf('tree-ink'), formatter: (item) => `${item.name}  ${bytesText(item.value)}`, fontSize: 11.5 },
      itemStyle: { borderColor: colorOf('card'), borderWidth: 1, gapWidth: 1 },
      levels: [{ itemStyle: { borderWidth: 0, gapWidth: 3 }, upperLabel: { show: false } }, { itemStyle: { borderWidth: 2, gapWidth: 2, borderColorSaturation: 0.5 } }, { colorAlpha: [0.75, 1], itemStyle: { borderWidth: 1, gapWidth: 1, borderColorSaturation: 0.6 } }, { colorAlpha: [0.6, 0.95] }] }],
  }), 330);
  onRedraw(build);
  const observer = new ResizeObserver(() => { if (plot && Math.abs(stage.clientWidth - plot.width) > 2) build(); });
  observer.observe(stage);
  onLeave(() => { observer.disconnect(); if (plot) plot.destroy(); cancelAnimationFrame(frame); });
  stage.addEventListener('keydown', (pressed) => {
    const towards = { ArrowLeft: -1, ArrowRight: 1 }[pressed.key];
    if (towards) { const at = clamp(upperIndex(moments, event) - 1 + towards * (pressed.shiftKey ? 10 : 1), 0, moments.length - 1); kept = moments[at]; moveTo(kept, true); keepState({ at: kept }); }
    else if (pressed.key === 'Home') { kept = peakEvent; moveTo(kept, true); keepState({ at: '' }); }
    else return;
    pressed.preventDefault();
  });
  part.tools.append(button('The peak', () => { kept = peakEvent; moveTo(kept, true); keepState({ at: '' }); }));
  saveTools(part.tools, 'step', () => onPaper([plot.ctx.canvas], plot.width, plot.height), () => [['event', ...used().map(({ name }) => `${name} (bytes)`)], moments.map((e) => [e, ...used().map(({ n }) => totals[n][e])])]);
  saveTools(tree.tools, 'alive', () => drawn.picture(), () => [['category', 'module', 'place', 'bytes'], [...aliveAt(step, event)].flatMap(([category, modules]) => [...modules].flatMap(([module, places]) => [...places].map(([place, value]) => [category, module, place, value])))]);
}
