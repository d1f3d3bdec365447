// The whole run over time: lowest and highest of every stretch, phases as bands, exact step peaks as dots, the peak pinned.
const ROLES = {
  tree: { color: 'job', width: 1.6, fill: true, visible: true }, imports: { color: 'data', width: 0.8, fill: true, visible: false },
  'upper bound': { color: 'p5', dash: [2, 3], width: 1.1, visible: true }, predicted: { color: 'update', dash: [5, 3], width: 1.4, visible: true },
  used: { color: 'used', dash: [6, 4], width: 1.1, visible: false }, background: { color: 'background', width: 1.1, fill: true, visible: false }, device: { color: 'p3', width: 1.3, visible: true },
};
const PHASES = ['data', 'forward', 'backward', 'update'];

const curveKey = (curve) => `${curve.role}/${curve.index}/${curve.name}`;

function stepsTable(steps) {
  const columns = {};
  for (const [name, value] of Object.entries(steps)) columns[name] = value && value.base64 !== undefined ? unpack(value) : value;
  for (const name of ['begin', 'forward', 'backward', 'update', 'end']) columns[name] = columns[`${name}_us`].map((us) => us / 1e6);
  return columns;
}

function phaseParts(steps, row) {
  const edges = [steps.begin[row], steps.forward[row], steps.backward[row], steps.update[row], steps.end[row]], parts = [];
  if (edges.slice(1, 4).every(Number.isNaN) && Number.isNaN(steps.data_peak_bytes[row])) return parts;
  for (let n = 0; n < 4; n++) if (!Number.isNaN(edges[n])) parts.push({ phase: PHASES[n], begin: edges[n], end: edges.slice(n + 1).find((edge) => !Number.isNaN(edge)), peak: steps[`${PHASES[n]}_peak_bytes`][row] });
  return parts;
}

function rowsBetween(steps, range) {
  const begin = upperIndex(steps.end, range[0]);
  let end = begin;
  while (end < steps.end.length && steps.begin[end] <= range[1]) end++;
  return [begin, end];
}

// Levels of a curve that is inside of the page: the coarsest that has a row for every pixel in the stretch.
function insideWindow(curve, range, rows) {
  curve.read = curve.read || curve.levels.map(unpackLevel);
  let best = curve.read[0];
  for (const level of curve.read) if (upperIndex(level.time, range[1]) - upperIndex(level.time, range[0]) >= rows) best = level;
  const first = Math.max(upperIndex(best.time, range[0]) - 1, 0), last = Math.min(upperIndex(best.time, range[1]) + 1, best.time.length);
  return { time: best.time.slice(first, last), low: best.low.slice(first, last), high: best.high.slice(first, last) };
}

// uPlot draws each curve twice: its highest values as the line, its lowest as the lower edge of a band.
function timelineCard(part, id, run, other, otherId, late = null) {
  const host = element('div', 'chart'), read = element('p', 'read'), toggles = element('div', 'toggles');
  read.setAttribute('role', 'status');
  read.dataset.idle = 'What the cursor points at is written here.';
  host.tabIndex = 0;
  host.setAttribute('role', 'img');
  host.setAttribute('aria-label', `Memory over time; ${known(run.headline.peak) ? `peak ${bytesText(run.headline.peak.value)}` : 'peak unknown'}`);
  part.node.append(host, read, toggles, element('p', 'hint', 'Drag to zoom, double-click for the whole run; with the keyboard: arrows, + and -, 0. Each column shows the lowest and highest sample of its stretch, so no peak is lost.'));
  const steps = stepsTable(run.steps), end = Math.max(run.headline.duration.value, other ? other.headline.duration.value : 0, 1e-3), whole = [0, end];
  const state = currentState();
  let range = state.from !== undefined && Number(state.to) > Number(state.from) ? [clamp(Number(state.from), 0, end), clamp(Number(state.to), 0, end)] : [...whole];
  if (!(range[1] > range[0])) range = [...whole];
  let number = 0;
  const curves = run.curves.map((curve) => ({ ...curve, key: curveKey(curve), style: ROLES[curve.role] || { color: `p${number % 6}`, width: 1.1, visible: number++ < 4 } }));
  if (other) curves.push(...other.curves.filter((curve) => curve.role === 'tree').map((curve) => ({ ...curve, key: `B/${curveKey(curve)}`, name: `B: ${curve.name}`, isOther: true, style: { color: 'other', width: 1.5, dash: [6, 3], visible: true } })));
  // Of two runs that are laid over each other the whole trees are compared first.
  for (const curve of curves) curve.visible = other ? curve.role === 'tree' || curve.isOther : curve.style.visible;
  if (other) for (const curve of curves) if (curve.role === 'tree' && !curve.isOther) curve.name = `A: ${curve.name}`;
  const lateTicks = late ? { time: columnOf(late.seconds), late: columnOf(late.late_seconds) } : { time: [], late: [] };
  const show = { bands: true, dots: run.processes.length <= 1 && !other, late: true };
  // What is shown is in the address where it is not the usual.
  const usual = new Map([...curves.map((curve) => [curve.key, curve.visible]), ...Object.entries(show)]);
  const kept = new Map((state.shown || '').split(';').filter(Boolean).map((part_) => [decodeURIComponent(part_.replace(/^[+-]/, '')), part_.startsWith('+')]));
  for (const curve of curves) if (kept.has(curve.key)) curve.visible = kept.get(curve.key);
  for (const name of Object.keys(show)) if (kept.has(name)) show[name] = kept.get(name);
  const keepShown = () => keepState({ shown: [...curves.map((curve) => [curve.key, curve.visible]), ...Object.entries(show)].filter(([key, value]) => usual.get(key) !== value).map(([key, value]) => `${value ? '+' : '-'}${encodeURIComponent(key)}`).join(';') });
  let plot = null, fetched = null, fetchTicket = 0;

  const rowsWanted = () => Math.max(host.clientWidth, 300);
  function data() {
    const stretches = curves.filter((curve) => curve.visible).map((curve) => ({ curve, ...(fetched && fetched.has(curve.key) ? fetched.get(curve.key) : insideWindow(curve, range, rowsWanted())) }));
    const tables = stretches.map((each) => [Array.from(each.time), Array.from(each.low), Array.from(each.high)]);
    return { stretches, joined: tables.length ? uPlot.join(tables) : [[0], [null], [null]] };
  }
  function build() {
    const { stretches, joined } = data();
    if (plot) plot.destroy();
    const series = [{}], bands = [];
    stretches.forEach(({ curve }, n) => {
      const color = colorOf(curve.style.color);
      series.push({ stroke: 'transparent', width: 0, spanGaps: true, points: { show: false } }, { label: curve.name, stroke: color, width: curve.style.width, dash: curve.style.dash, spanGaps: true, points: { show: false }, fill: curve.style.fill ? `${color}1c` : undefined });
      bands.push({ series: [2 * n + 2, 2 * n + 1], fill: `${color}55` });
    });
    plot = new uPlot({
      width: Math.max(host.clientWidth, 200), height: host.clientWidth < 560 ? 260 : 330, legend: { show: false }, bands, padding: [14, 14, 0, 0],
      cursor: { drag: { x: true, y: false, setScale: false }, points: { show: false } },
      scales: { x: { time: false, range: () => range }, y: { range: (_, low, high) => [0, Math.max(ceiling(), 1)] } },
      axes: [
        { stroke: colorOf('soft'), grid: { stroke: colorOf('grid'), width: 1 }, ticks: { stroke: colorOf('grid') }, size: 32, font: '12px system-ui', values: (_, ticks) => clockTicks(ticks) },
        { stroke: colorOf('soft'), grid: { stroke: colorOf('grid'), width: 1 }, ticks: { stroke: colorOf('grid') }, size: 78, font: '12px system-ui', values: (_, ticks) => ticks.map(tickText), incrs: BYTE_STEPS },
      ],
      series,
      hooks: {
        drawClear: [(self) => drawBehind(self)], draw: [(self) => drawAbove(self)],
        setSelect: [(self) => { if (self.select.width > 4) { const from = self.posToVal(self.select.left, 'x'), to = self.posToVal(self.select.left + self.select.width, 'x'); self.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false); zoom([from, to]); } }],
        setCursor: [(self) => { say(self.cursor.left >= 0 ? self.posToVal(self.cursor.left, 'x') : null); }],
      },
    }, joined, host);
    plot.over.addEventListener('dblclick', () => zoom(whole));
  }
  function ceiling() {
    let high = 0;
    for (const curve of curves) { if (!curve.visible) continue; const each = fetched && fetched.has(curve.key) ? fetched.get(curve.key) : insideWindow(curve, range, rowsWanted()); for (const value of each.high) if (value > high) high = value; }
    const { peak, peak_seconds: at, limit_bytes: limit } = run.headline;
    if (known(peak) && at !== null && at >= range[0] && at <= range[1]) high = Math.max(high, peak.value);
    if (limit && limit < high * 1.7) high = Math.max(high, limit);
    return high * 1.12;
  }
  function drawBehind(self) {
    const pen = self.ctx, { left, top, width, height } = self.bbox, x = (seconds) => clamp(self.valToPos(seconds, 'x', true), left, left + width);
    pen.save();
    if (show.bands) {
      const [begin, last] = rowsBetween(steps, range);
      if (last - begin < width / 8) {
        pen.globalAlpha = Number(colorOf('band')) || 0.16;
        for (let row = begin; row < last; row++) for (const each of phaseParts(steps, row)) { pen.fillStyle = colorOf(each.phase); pen.fillRect(x(each.begin), top, Math.max(x(each.end) - x(each.begin), 0.5), height); }
        pen.globalAlpha = 1;
        if (last - begin < 14) {
          pen.fillStyle = colorOf('soft'); pen.textAlign = 'center'; pen.textBaseline = 'bottom'; pen.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
          for (let row = begin; row < last; row++) for (const each of phaseParts(steps, row)) { const room = x(each.end) - x(each.begin); if (pen.measureText(each.phase).width + 6 < room) pen.fillText(each.phase, (x(each.begin) + x(each.end)) / 2, top + height - 8 * devicePixelRatio); }
        }
      }
      for (const span of run.spans) { if (span.end_seconds < range[0] || span.begin_seconds > range[1]) continue; pen.globalAlpha = 0.35; pen.fillStyle = colorOf('update'); pen.fillRect(x(span.begin_seconds), top, Math.max(x(span.end_seconds) - x(span.begin_seconds), 1), 10 * devicePixelRatio); pen.globalAlpha = 1; }
    }
    pen.restore();
  }
  function drawAbove(self) {
    const pen = self.ctx, scale = devicePixelRatio, { left, width, top } = self.bbox, x = (seconds) => self.valToPos(seconds, 'x', true), y = (value) => self.valToPos(value, 'y', true);
    pen.save();
    pen.setLineDash([]);
    pen.beginPath(); pen.rect(left, 0, width, self.bbox.height + top); pen.clip();
    if (show.dots) {
      const [begin, last] = rowsBetween(steps, range), radius = (last - begin > 200 ? 1.3 : 2.8) * scale;
      pen.fillStyle = colorOf('exact');
      for (let row = begin; row < last; row++) {
        if (Number.isNaN(steps.peak_bytes[row])) continue;
        const highest = phaseParts(steps, row).reduce((best, each) => (each.peak > (best ? best.peak : -1) ? each : best), null);
        pen.beginPath(); pen.arc(x(highest ? highest.begin + (highest.end - highest.begin) * 0.03 : steps.end[row]), y(steps.peak_bytes[row]), radius, 0, 7); pen.fill();
      }
    }
    if (show.late) {
      pen.fillStyle = colorOf('limit');
      for (let n = 0; n < lateTicks.time.length; n++) { const from = x(lateTicks.time[n] - lateTicks.late[n]), to = x(lateTicks.time[n]); if (to >= left && from <= left + width) pen.fillRect(from, top + self.bbox.height - 5 * scale, Math.max(to - from, scale), 5 * scale); }
    }
    const { peak, peak_seconds: at, limit_bytes: limit } = run.headline;
    pen.font = `600 ${12.5 * scale}px system-ui, sans-serif`;
    // Of two peaks the higher one has its plate above and the lower one below, so that they do not meet.
    const isLower = Boolean(other) && known(peak) && known(other.headline.peak) && peak.value < other.headline.peak.value, plates = [];
    if (other) plates.push(pin(self, 'B: peak', other.headline, colorOf('other'), !isLower));
    plates.push(pin(self, other ? 'A: peak' : 'peak', run.headline, colorOf('ink'), isLower || (known(peak) && limit && Math.abs(y(peak.value) - 18 * scale - y(limit)) < 20 * scale)));
    if (limit) { const line = y(limit); if (line > top) { pen.strokeStyle = colorOf('limit'); pen.setLineDash([8, 4]); pen.lineWidth = 1.4 * scale; pen.beginPath(); pen.moveTo(left, line); pen.lineTo(left + width, line); pen.stroke(); pen.setLineDash([]); pen.fillStyle = colorOf('limit'); limitWords(self, `limit ${bytesText(limit)}`, line, plates.filter(Boolean)); } }
    pen.restore();
  }
  // A ring around a peak and a plate with its size beside it; where the plate is.
  function pin(self, words, { peak, peak_seconds: at }, color, isBelow) {
    if (!known(peak) || at === null || at < range[0] || at > range[1]) return null;
    const pen = self.ctx, scale = devicePixelRatio, { left, width } = self.bbox, px = self.valToPos(at, 'x', true), py = self.valToPos(peak.value, 'y', true);
    const text = `${words} ${bytesText(peak.value)}`, wide = pen.measureText(text).width + 12 * scale, from = clamp(px - wide / 2, left + 2, left + width - wide - 2), up = isBelow ? py + 9 * scale : Math.max(py - 26 * scale, 2);
    pen.strokeStyle = color; pen.lineWidth = 1.5 * scale; pen.beginPath(); pen.arc(px, py, 5 * scale, 0, 7); pen.stroke();
    pen.fillStyle = colorOf('card'); pen.globalAlpha = 0.94; pen.fillRect(from, up, wide, 19 * scale); pen.globalAlpha = 1; pen.strokeStyle = colorOf('line'); pen.lineWidth = 1; pen.strokeRect(from, up, wide, 19 * scale);
    pen.fillStyle = color; pen.textAlign = 'left'; pen.textBaseline = 'middle'; pen.fillText(text, from + 6 * scale, up + 10 * scale);
    return { left: from, right: from + wide, top: up, bottom: up + 19 * scale };
  }
  // The name of the limit, at whichever end and side of its line no plate lies.
  function limitWords(self, text, line, plates) {
    const pen = self.ctx, scale = devicePixelRatio, { left, width } = self.bbox, wide = pen.measureText(text).width, tall = 16 * scale;
    for (const [x, top] of [[left + 6, line - tall], [left + width - wide - 6, line - tall], [left + 6, line + 3], [left + width - wide - 6, line + 3]]) {
      if (plates.some((plate) => x < plate.right && x + wide > plate.left && top < plate.bottom && top + tall > plate.top)) continue;
      pen.fillStyle = colorOf('card'); pen.globalAlpha = 0.8; pen.fillRect(x - 2, top - 1, wide + 4, tall - 1); pen.globalAlpha = 1;
      pen.fillStyle = colorOf('limit'); pen.textAlign = 'left'; pen.textBaseline = 'top'; pen.fillText(text, x, top);
      return;
    }
  }
  function say(seconds) {
    if (seconds === null) { read.textContent = ''; return; }
    const words = [clockText(seconds, range[1] - range[0])], row = upperIndex(steps.end, seconds);
    if (row < steps.end.length && steps.begin[row] <= seconds) { const each = phaseParts(steps, row).filter((one) => one.begin <= seconds).pop(); words.push(`step ${steps.step[row]}`, each ? each.phase + (Number.isNaN(each.peak) ? '' : ` (exact peak ${bytesText(each.peak)})`) : ''); }
    for (const curve of curves) {
      if (!curve.visible) continue;
      const each = fetched && fetched.has(curve.key) ? fetched.get(curve.key) : insideWindow(curve, range, rowsWanted()), at = upperIndex(each.time, seconds) - 1;
      if (at >= 0 && at < each.high.length) words.push(`${curve.name} ${each.high[at] - each.low[at] < MIB / 4 ? bytesText(each.high[at]) : `${bytesText(each.low[at])} to ${bytesText(each.high[at])}`}`);
    }
    read.textContent = words.filter(Boolean).join('  ·  ');
  }
  // Asks the server for more detail than the page holds; what is on the screen stays until it is there.
  async function fetchDetail() {
    if (!source.isServed) { build(); return; }
    const ticket = ++fetchTicket, started = performance.now();
    try {
      const asked = [source.window(id, range[0], range[1], rowsWanted()), other && otherId ? source.window(otherId, range[0], range[1], rowsWanted()) : null];
      const [own, theirs] = await Promise.all(asked);
      if (ticket !== fetchTicket) return;
      fetched = new Map();
      for (const [answer, prefix] of [[own, ''], [theirs, 'B/']]) for (const curve of answer ? answer.curves : []) fetched.set(prefix + curveKey(curve), { time: columnOf(curve.time), low: columnOf(curve.low), high: columnOf(curve.high) });
    } catch (error) { read.textContent = error.message; }
    build();
    document.documentElement.dataset.zoomMs = (performance.now() - started).toFixed(1);
    document.documentElement.dataset.zooms = String(Number(document.documentElement.dataset.zooms || 0) + 1);
  }
  function zoom([from, to]) {
    const span = Math.max(to - from, 1e-4), first = clamp(from, 0, Math.max(end - span, 0));
    range = span >= end ? [...whole] : [first, first + span];
    keepState({ from: range[1] - range[0] >= end ? '' : range[0].toFixed(5), to: range[1] - range[0] >= end ? '' : range[1].toFixed(5) });
    fetched = null;
    fetchDetail();
  }
  function fillToggles() {
    toggles.replaceChildren();
    const add = (text, color, checked, change, look = 'block') => { const label = element('label'), box = element('input'), swatch = element('span', `swatch ${look}`); box.type = 'checkbox'; box.checked = checked; swatch.style.color = `var(--${color})`; box.addEventListener('change', () => { change(box.checked); keepShown(); build(); }); label.append(box, swatch, text); toggles.append(label); };
    for (const curve of curves) add(curve.name, curve.style.color, curve.visible, (value) => { curve.visible = value; }, curve.style.dash ? 'dashed' : '');
    if (lateTicks.time.length) add('late samples', 'limit', show.late, (value) => { show.late = value; });
    if (steps.num_steps) {
      add('exact peak of each step', 'exact', show.dots, (value) => { show.dots = value; }, 'dot');
      add('phases:', 'backward', show.bands, (value) => { show.bands = value; });
      for (const phase of PHASES) { const item = element('span', 'check'), swatch = element('span', 'swatch block'); swatch.style.color = `var(--${phase})`; item.append(swatch, phase); toggles.append(item); }
    }
  }
  host.addEventListener('keydown', (event) => {
    const span = range[1] - range[0], middle = (range[0] + range[1]) / 2;
    if (event.key === '+' || event.key === '=') zoom([middle - span / 4, middle + span / 4]);
    else if (event.key === '-') zoom([middle - span, middle + span]);
    else if (event.key === '0' || event.key === 'Home') zoom(whole);
    else if (event.key === 'ArrowLeft') zoom([range[0] - span / 8, range[1] - span / 8]);
    else if (event.key === 'ArrowRight') zoom([range[0] + span / 8, range[1] + span / 8]);
    else return;
    event.preventDefault();
  });
  fillToggles();
  build();
  if (range[1] - range[0] < end) fetchDetail();
  onRedraw(build);
  const observer = new ResizeObserver(() => { if (plot && Math.abs(host.clientWidth - plot.width) > 2) build(); });
  observer.observe(host);
  onLeave(() => { observer.disconnect(); if (plot) plot.destroy(); });
  part.tools.append(button('Zoom to the peak', () => { const at = run.headline.peak_seconds; if (at === null) return; const span = known(steps.median_seconds) ? steps.median_seconds.value * 6 : end / 50; zoom([at - span / 2, at + span / 2]); }), button('Whole run', () => zoom(whole)));
  saveTools(part.tools, 'timeline', () => onPaper([plot.ctx.canvas], plot.width, plot.height), () => { const { stretches } = data(); return [['curve', 'seconds', 'lowest (bytes)', 'highest (bytes)'], stretches.flatMap((each) => Array.from(each.time, (time, n) => [each.curve.name, time, each.low[n], each.high[n]]))]; });
  return { zoom };
}
