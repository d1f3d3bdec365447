// Charts of two libraries: ECharts for scatter, treemap and schedules, uPlot for curves. Both take their colours from the page.
const { echarts, uPlot } = MemfitCharts;

const SERIES_COLORS = ['p3', 'p2', 'p0', 'p1', 'p4', 'job', 'other', 'p5'];
const CATEGORY_COLORS = { parameter: 'c-parameter', buffer: 'c-buffer', gradient: 'c-gradient', 'optimizer state': 'c-state', activation: 'c-activation', temporary: 'c-temporary', input: 'c-input', workspace: 'c-workspace' };
const categoryColor = (name) => colorOf(CATEGORY_COLORS[name] || 'soft');

// A chart whose option is made anew from the page's colours; tooltips are drawn, never put together as markup.
function drawnChart(host, makeOption, height = 340) {
  host.style.height = `${height}px`;
  const chart = echarts.init(host, null, { renderer: 'canvas' });
  const draw = () => chart.setOption(withColors(makeOption(chart)), { notMerge: true, lazyUpdate: false });
  const observer = new ResizeObserver(() => chart.resize());
  observer.observe(host);
  onRedraw(draw);
  onLeave(() => { observer.disconnect(); chart.dispose(); });
  draw();
  return { chart, draw, picture: () => chart.renderToCanvas({ pixelRatio: 2, backgroundColor: colorOf('card') }) };
}

function withColors(option) {
  return { animation: false, textStyle: { color: colorOf('ink'), fontFamily: 'system-ui, "DejaVu Sans", sans-serif' }, ...option,
    tooltip: { renderMode: 'richText', confine: true, backgroundColor: colorOf('card'), borderColor: colorOf('line'), textStyle: { color: colorOf('ink'), fontSize: 12.5 }, ...(option.tooltip || {}) } };
}

const axisStyle = (name, unit, more = {}) => ({
  name, nameLocation: 'middle', nameGap: more.gap || 30, nameTextStyle: { color: colorOf('soft') }, scale: true,
  axisLine: { lineStyle: { color: colorOf('soft') } }, splitLine: { lineStyle: { color: colorOf('grid') } },
  axisLabel: { color: colorOf('soft'), hideOverlap: true, formatter: (value) => unitText(value, unit) }, ...more,
});

// Bounds and steps of an axis of bytes in whole powers of two.
function byteRange(values, from = null) {
  let low = Infinity, high = -Infinity;
  for (const value of values) { if (value < low) low = value; if (value > high) high = value; }
  if (!(high >= low)) return {};
  if (from !== null) low = from;
  const interval = 2 ** Math.ceil(Math.log2(Math.max(high - low, high * 0.01, 1) / 7));
  return { min: Math.floor(low / interval) * interval, max: Math.ceil((high * 1.0001) / interval) * interval, interval, axisLabel: { color: colorOf('soft'), hideOverlap: true, formatter: tickText } };
}

// A colour, or a function that gives the one of the theme that is on.
const painted = (color) => (typeof color === 'function' ? color() : color);

// ---- curves ------------------------------------------------------------------------------------------------------------

// One uPlot: `lines` are {name, key, color, x, y, dash, fill, width}; every line has its own x, joined by uPlot itself.
// The line near the cursor is told to `onFocus` by its key, one that is clicked to `onPick`, and `focus(key)` marks one from outside.
function curvePlot(host, lines, options = {}) {
  let plot = null, shown = lines, near = null;
  const told = (series) => { const key = series === null || series === undefined ? null : shown[series - 1].key ?? null; if (key !== near) { near = key; if (options.onFocus) options.onFocus(key); } };
  const build = () => {
    if (plot) plot.destroy();
    const width = Math.max(host.clientWidth, 200);
    const own = shown.map((line) => [line.x, line.y]);
    const data = own.length ? uPlot.join(own) : [[0], [null]];
    plot = new uPlot({
      width, height: options.height || 260, legend: { show: false }, cursor: { drag: { x: true, y: false }, focus: { prox: 16 } },
      focus: { alpha: 0.25 }, scales: { x: { time: false, range: options.range || (options.wholeX ? (_, low, high) => (low === high ? [low - 1, high + 1] : [low, high]) : undefined) }, y: { range: options.rangeY } },
      axes: [
        { stroke: colorOf('soft'), grid: { stroke: colorOf('grid'), width: 1 }, ticks: { stroke: colorOf('grid') }, label: options.labelX, labelSize: 20, labelGap: 2, size: 32, labelFont: '12px system-ui', font: '12px system-ui', incrs: options.wholeX ? WHOLE_STEPS : undefined, values: (self, ticks) => (options.unitX === 'seconds' ? clockTicks(ticks) : ticks.map((tick) => unitText(tick, options.unitX))) },
        { stroke: colorOf('soft'), grid: { stroke: colorOf('grid'), width: 1 }, ticks: { stroke: colorOf('grid') }, size: options.unitY === 'bytes' ? 78 : 62, label: options.labelY, labelSize: 20, labelFont: '12px system-ui', font: '12px system-ui', values: (_, ticks) => ticks.map((tick) => (tick === null ? '' : options.unitY === 'bytes' ? tickText(tick) : unitText(tick, options.unitY))), incrs: options.unitY === 'bytes' ? BYTE_STEPS : undefined },
      ],
      series: [{}, ...(own.length ? shown : [{}]).map((line) => ({ label: line.name, stroke: painted(line.color), fill: painted(line.fill), width: line.width || 1.5, dash: line.dash, spanGaps: true, paths: options.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined, points: { show: line.x && line.x.length < 2 ? true : undefined, size: 4 } }))],
      hooks: { setSeries: [(_, series, change) => { if (own.length && change.focus) told(series); }], ...(options.hooks || {}) },
    }, data, host);
    plot.over.addEventListener('dblclick', () => options.onWhole && options.onWhole());
    plot.over.addEventListener('mouseleave', () => told(null));
    if (options.onPick) plot.over.addEventListener('click', () => { if (near !== null) options.onPick(near); });
  };
  const observer = new ResizeObserver(() => { if (plot && Math.abs(host.clientWidth - plot.width) > 2) plot.setSize({ width: Math.max(host.clientWidth, 200), height: options.height || 260 }); });
  observer.observe(host);
  build();
  const stop = () => { observer.disconnect(); if (plot) plot.destroy(); plot = null; };
  onRedraw(build);
  onLeave(stop);
  return {
    destroy() { stop(); forget(build, stop); },
    get plot() { return plot; }, build,
    set(next) { shown = next; near = null; build(); },
    focus(key) {
      if (key === near || !plot) return;
      const at = key === null ? -1 : shown.findIndex((line) => line.key === key);
      near = at < 0 ? null : key;
      plot.setSeries(at < 0 ? null : at + 1, { focus: true }, false);
    },
    picture: () => onPaper([plot.ctx.canvas], plot.width, plot.height),
    numbers: () => [[options.labelX || 'x', 'curve', options.labelY || 'value'], shown.flatMap((line) => Array.from(line.x, (x, n) => [x, line.name, line.y[n]]))],
  };
}
const WHOLE_STEPS = Array.from({ length: 27 }, (_, n) => [1, 2, 5][n % 3] * 10 ** Math.floor(n / 3));
const BYTE_STEPS = Array.from({ length: 46 }, (_, n) => 2 ** n);
