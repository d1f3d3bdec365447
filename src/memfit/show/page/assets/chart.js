// One canvas with curves over x: zoom by drag, a cursor by mouse or keyboard, redraw on resize and on a change of scheme.
class Chart {
  constructor(canvas, options) {
    Object.assign(this, { canvas, options, cursor: null, drag: null, fit: false, left: 76, top: 12, right: 14, bottom: 28 });
    this.full = options.range;
    this.range = [...this.full];
    this.context = canvas.getContext('2d');
    canvas.addEventListener('pointerdown', (event) => this.press(event));
    canvas.addEventListener('pointermove', (event) => this.move(event));
    canvas.addEventListener('pointerup', (event) => this.release(event));
    canvas.addEventListener('pointercancel', () => { this.drag = null; this.draw(); });
    canvas.addEventListener('pointerleave', () => { if (!this.drag) this.point(null); });
    canvas.addEventListener('dblclick', () => this.zoom(this.full));
    canvas.addEventListener('keydown', (event) => this.key(event));
    new ResizeObserver(() => this.resize()).observe(canvas);
    this.resize();
  }

  resize() {
    const scale = window.devicePixelRatio || 1, box = this.canvas.getBoundingClientRect();
    this.width = Math.max(box.width, 120);
    this.height = Math.max(box.height, 80);
    this.canvas.width = Math.round(this.width * scale);
    this.canvas.height = Math.round(this.height * scale);
    this.context.setTransform(scale, 0, 0, scale, 0, 0);
    this.left = this.width < 500 ? 62 : 76;
    this.draw();
  }

  get plotWidth() { return this.width - this.left - this.right; }
  x(value) { return this.left + ((value - this.range[0]) / (this.range[1] - this.range[0])) * this.plotWidth; }
  y(value) { return this.height - this.bottom - ((value - this.base) / (this.ceiling - this.base)) * (this.height - this.top - this.bottom); }
  at(pixel) { return this.range[0] + ((pixel - this.left) / this.plotWidth) * (this.range[1] - this.range[0]); }

  zoom(range) {
    const smallest = this.options.smallest || 1e-3, middle = (range[0] + range[1]) / 2;
    const span = Math.max(range[1] - range[0], smallest), whole = this.full[1] - this.full[0];
    let begin = span >= whole ? this.full[0] : Math.min(Math.max(middle - span / 2, this.full[0]), this.full[1] - span);
    this.range = span >= whole ? [...this.full] : [begin, begin + span];
    this.draw();
    if (this.options.onZoom) this.options.onZoom(this.range);
  }

  // ---- hands ---------------------------------------------------------------------------------------------------------

  pixel(event) { return Math.min(Math.max(event.clientX - this.canvas.getBoundingClientRect().left, this.left), this.width - this.right); }

  press(event) {
    if (event.button !== 0) return;
    this.drag = { from: this.pixel(event), to: this.pixel(event) };
    this.canvas.setPointerCapture(event.pointerId);
  }

  move(event) {
    if (this.drag) this.drag.to = this.pixel(event);
    this.point(this.at(this.pixel(event)));
  }

  release() {
    const drag = this.drag;
    this.drag = null;
    if (drag && Math.abs(drag.to - drag.from) > 5) {
      const ends = [this.at(drag.from), this.at(drag.to)].sort((a, b) => a - b);
      this.zoom(ends);
    } else this.draw();
  }

  key(event) {
    const span = this.range[1] - this.range[0], middle = this.cursor ?? (this.range[0] + this.range[1]) / 2;
    const towards = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (towards && event.shiftKey) this.zoom([this.range[0] + (towards * span) / 10, this.range[1] + (towards * span) / 10]);
    else if (towards) this.point(Math.min(Math.max(middle + (towards * span) / 200, this.range[0]), this.range[1]));
    else if (event.key === '+' || event.key === '=') this.zoom([middle - span / 4, middle + span / 4]);
    else if (event.key === '-') this.zoom([middle - span, middle + span]);
    else if (event.key === '0' || event.key === 'Home' || event.key === 'Escape') this.zoom(this.full);
    else return;
    event.preventDefault();
  }

  point(value) {
    this.cursor = value;
    this.draw();
    if (this.options.onPoint) this.options.onPoint(value);
  }

  // ---- drawing -------------------------------------------------------------------------------------------------------

  // The coarsest level that still has a row for every pixel column; the finest when none has.
  levelFor(series) {
    let best = series.levels[0];
    for (const level of series.levels) {
      const rows = upperIndex(level.time, this.range[1]) - upperIndex(level.time, this.range[0]);
      if (rows >= this.plotWidth) best = level;
    }
    return best;
  }

  rowsInView(level) {
    const begin = Math.max(upperIndex(level.time, this.range[0]) - 1, 0);
    return [begin, Math.min(upperIndex(level.time, this.range[1]) + 1, level.time.length)];
  }

  extent() {
    let low = Infinity, high = -Infinity;
    for (const series of this.options.series()) {
      if (!series.visible) continue;
      const level = this.levelFor(series), [begin, end] = this.rowsInView(level);
      for (let i = begin; i < end; i++) {
        if (level.high[i] > high) high = level.high[i];
        if (level.low[i] < low) low = level.low[i];
      }
    }
    for (const value of this.options.levels ? this.options.levels(this.range) : []) { high = Math.max(high, value); low = Math.min(low, value); }
    return high > -Infinity ? [low, high] : [0, 1];
  }

  draw() {
    if (!this.width) return;
    const pen = this.context;
    const [low, high] = this.extent();
    this.base = this.fit ? Math.max(low - (high - low) * 0.08, 0) : 0;
    this.ceiling = Math.max(high + (high - this.base) * 0.12, this.base + 1);
    pen.clearRect(0, 0, this.width, this.height);
    pen.font = '12px system-ui, "DejaVu Sans", sans-serif';
    this.drawGrid(pen);
    pen.save();
    pen.beginPath();
    pen.rect(this.left, 0, this.plotWidth, this.height - this.bottom);
    pen.clip();
    if (this.options.before) this.options.before(this, pen);
    // The first curve is the one that matters most, so it is drawn last, on top.
    for (const series of [...this.options.series()].reverse()) if (series.visible) this.drawSeries(pen, series);
    if (this.options.after) this.options.after(this, pen);
    pen.restore();
    this.drawCursor(pen);
  }

  drawGrid(pen) {
    pen.strokeStyle = colorOf('grid');
    pen.fillStyle = colorOf('soft');
    pen.lineWidth = 1;
    pen.textBaseline = 'middle';
    pen.textAlign = 'right';
    let step = 1;
    while (step * 6 < this.ceiling - this.base) step *= 2;
    for (let value = Math.ceil(this.base / step) * step; value <= this.ceiling; value += step) {
      const y = Math.round(this.y(value)) + 0.5;
      pen.beginPath(); pen.moveTo(this.left, y); pen.lineTo(this.width - this.right, y); pen.stroke();
      pen.fillText(tickText(value), this.left - 8, y);
    }
    pen.textBaseline = 'top';
    for (const tick of this.xTicks()) {
      const x = this.x(tick.value);
      pen.textAlign = x > this.width - 40 ? 'right' : x < this.left + 12 ? 'left' : 'center';
      pen.fillText(tick.text, x, this.height - this.bottom + 8);
    }
  }

  xTicks() {
    const span = this.range[1] - this.range[0], wanted = span / Math.max(this.plotWidth / 110, 2);
    const nice = this.options.whole ? [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 1e6]
      : [1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400];
    const step = nice.find((value) => value >= wanted) || nice[nice.length - 1], ticks = [];
    for (let n = Math.ceil(this.range[0] / step); n * step <= this.range[1]; n++) {
      ticks.push({ value: n * step, text: this.options.whole ? (n * step).toLocaleString('en') : clockDigits(n * step, step >= 1 ? 0 : Math.ceil(-Math.log10(step) - 1e-9)) });
    }
    return ticks;
  }

  // Walks the rows once, joining those that share a pixel column into its lowest and highest value.
  drawSeries(pen, series) {
    const level = this.levelFor(series), [begin, end] = this.rowsInView(level);
    if (end <= begin) return;
    const color = colorOf(series.color), columns = [];
    for (let i = begin; i < end; i++) {
      const x = Math.round(this.x(level.time[i]) * 2) / 2, last = columns[columns.length - 1];
      if (last && last.x === x) { last.low = Math.min(last.low, level.low[i]); last.high = Math.max(last.high, level.high[i]); }
      else columns.push({ x, low: level.low[i], high: level.high[i] });
    }
    if (series.fill) {
      pen.globalAlpha = series.fill === true ? 0.12 : series.fill; pen.fillStyle = color; pen.beginPath();
      pen.moveTo(columns[0].x, this.y(this.base));
      for (const column of columns) pen.lineTo(column.x, this.y(column.high));
      pen.lineTo(columns[columns.length - 1].x, this.y(this.base)); pen.closePath(); pen.fill();
      pen.globalAlpha = 1;
    }
    const spread = columns.filter((column) => this.y(column.low) - this.y(column.high) > 1.5).length;
    const band = columns.length > 50 && spread > columns.length / 2;
    if (band) this.drawBand(pen, columns, color);
    pen.strokeStyle = color; pen.lineWidth = series.width || 1.4; pen.setLineDash(series.dash || []); pen.lineJoin = 'round';
    pen.beginPath();
    columns.forEach((column, n) => {
      const high = this.y(column.high), low = this.y(column.low);
      if (n) pen.lineTo(column.x, high); else pen.moveTo(column.x, high);
      if (!band && low - high > 0.75) { pen.lineTo(column.x, low); pen.lineTo(column.x, high); }
    });
    pen.stroke();
    pen.setLineDash([]);
  }

  // Where almost every column holds a whole rise and fall, lowest to highest is drawn as an area instead of a forest of lines.
  drawBand(pen, columns, color) {
    pen.globalAlpha = 0.34; pen.fillStyle = color; pen.beginPath();
    columns.forEach((column, n) => (n ? pen.lineTo(column.x, this.y(column.high)) : pen.moveTo(column.x, this.y(column.high))));
    for (let n = columns.length - 1; n >= 0; n--) pen.lineTo(columns[n].x, this.y(columns[n].low));
    pen.closePath(); pen.fill();
    pen.globalAlpha = 1;
  }

  drawCursor(pen) {
    if (this.drag && Math.abs(this.drag.to - this.drag.from) > 2) {
      pen.globalAlpha = 0.18; pen.fillStyle = colorOf('focus');
      pen.fillRect(Math.min(this.drag.from, this.drag.to), this.top, Math.abs(this.drag.to - this.drag.from), this.height - this.top - this.bottom);
      pen.globalAlpha = 1;
    }
    if (this.cursor === null || this.cursor < this.range[0] || this.cursor > this.range[1]) return;
    const x = Math.round(this.x(this.cursor)) + 0.5;
    pen.strokeStyle = colorOf('soft'); pen.lineWidth = 1; pen.setLineDash([3, 3]);
    pen.beginPath(); pen.moveTo(x, this.top); pen.lineTo(x, this.height - this.bottom); pen.stroke();
    pen.setLineDash([]);
  }
}

// The row of a curve at a moment: [low, high] of the stretch it falls into, or null before its first and after its last row.
function valueAt(level, seconds) {
  const row = upperIndex(level.time, seconds) - 1, last = level.time.length - 1;
  if (row < 0 || (row === last && last > 0 && seconds - level.time[last] > 2 * (level.time[last] - level.time[last - 1]) + 0.05)) return null;
  return [level.low[row], level.high[row]];
}

function toggle(parent, series, redraw) {
  const label = element('label'), box = element('input');
  box.type = 'checkbox';
  box.checked = series.visible;
  box.addEventListener('change', () => { series.visible = box.checked; redraw(); });
  const swatch = element('span', `swatch ${series.swatch || (series.dash ? 'dashed' : '')}`);
  swatch.style.color = `var(--${series.color})`;
  label.append(box, swatch, element('span', '', series.name));
  parent.append(label);
}

function key(color) {
  const node = element('span', 'check'), swatch = element('span', 'swatch block');
  swatch.style.color = `var(--${color})`;
  node.append(swatch, element('span', '', color));
  return node;
}

function label(chart, pen, x, y, text, color) {
  pen.font = '600 12.5px system-ui, "DejaVu Sans", sans-serif';
  const width = pen.measureText(text).width + 12, left = Math.min(Math.max(x - width / 2, chart.left + 2), chart.width - chart.right - width - 2);
  pen.globalAlpha = 0.94; pen.fillStyle = colorOf('card'); pen.strokeStyle = colorOf('line'); pen.lineWidth = 1;
  pen.beginPath(); pen.rect(left, y - 20, width, 19); pen.fill(); pen.stroke();
  pen.globalAlpha = 1; pen.fillStyle = color; pen.textAlign = 'left'; pen.textBaseline = 'middle';
  pen.fillText(text, left + 6, y - 10.5);
  pen.font = '12px system-ui, "DejaVu Sans", sans-serif';
}
