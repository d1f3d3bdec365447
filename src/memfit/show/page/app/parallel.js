// Parallel coordinates on canvases of our own. All trials are drawn once in grey; the selection, a bit for each trial, is drawn
// over it. Few lines are stroked; many are counted per pixel, which shows how dense they are and takes the same time for any number.
const STROKED = 1200, PREVIEWED = 3000, BUCKETS = 24;
const PARALLEL = { bottom: 14, band: 26, gap: 92, head: 15, reach: 5 };
const HEAD_FONT = '600 12.5px system-ui, "DejaVu Sans", sans-serif', TICK_FONT = '11.5px system-ui, "DejaVu Sans", sans-serif';
// The shade of a trial that is not ranked because it failed, ran out of memory or was rejected: grey, not the worst colour.
const NOT_RANKED = 2;

class Parallel {
  constructor(host, options) {
    Object.assign(this, { host, options, axes: [], brushes: new Map(), selected: null, hovered: null, focused: 0, drag: null, ready: false, jobs: {} });
    this.box = element('div', 'parallel');
    this.layers = ['context', 'chosen', 'front'].map((name) => { const canvas = element('canvas', name); this.box.append(canvas); return canvas; });
    [this.context, this.chosen, this.front] = this.layers;
    this.front.tabIndex = 0;
    this.front.setAttribute('role', 'application');
    this.front.setAttribute('aria-label', 'Parallel coordinates. Left and right choose an axis, up and down move its filter, Shift with them widens or narrows it, n keeps what has no value, l switches the logarithmic scale, Delete takes the filter off.');
    this.front.addEventListener('pointerdown', (event) => this.press(event));
    this.front.addEventListener('pointermove', (event) => this.move(event));
    this.front.addEventListener('pointerup', (event) => this.release(event));
    this.front.addEventListener('pointerleave', () => { if (!this.drag) this.hover(null); });
    this.front.addEventListener('dblclick', (event) => { const axis = this.axisAt(this.place(event)[0]); if (axis) this.setBrush(axis, null); });
    this.front.addEventListener('keydown', (event) => this.key(event));
    host.append(this.box);
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(host);
    onLeave(() => { this.observer.disconnect(); for (const job of Object.values(this.jobs)) clearTimeout(job); });
  }

  // axes: [{key, label, kind, values, labels, log, unit, missing}]; `coloring` is one of them, or null.
  setAxes(axes, size) {
    this.axes = axes;
    this.size = size;
    for (const axis of axes) this.scale(axis);
    for (const key of [...this.brushes.keys()]) if (!axes.some((axis) => axis.key === key)) this.brushes.delete(key);
    this.layout();
  }

  scale(axis) {
    const { values } = axis;
    let low = Infinity, high = -Infinity, missing = false;
    for (let i = 0; i < values.length; i++) { const value = values[i]; if (value !== value) missing = true; else { if (value < low) low = value; if (value > high) high = value; } }
    if (low > high) { low = 0; high = 1; }
    axis.marks = axis.kind === 'number' && !axis.unit ? fewValues(values, 12) : null;
    if (axis.kind === 'choice') { low = -0.5; high = Math.max(axis.labels.length - 0.5, 0.5); axis.log = false; }
    axis.canLog = axis.kind === 'number' && low > 0;
    axis.log = axis.log && axis.canLog;
    if (low === high) { const pad = Math.abs(low) * 0.05 || 0.5; low -= axis.log ? 0 : pad; high += pad; }
    Object.assign(axis, { low, high, hasMissing: missing, bent: axis.log ? [Math.log(low), Math.log(high)] : [low, high] });
  }

  share(axis, value) { const [low, high] = axis.bent; return ((axis.log ? Math.log(value) : value) - low) / (high - low); }
  valueAt(axis, share) { const [low, high] = axis.bent, bent = low + share * (high - low); return axis.log ? Math.exp(bent) : bent; }

  resize() {
    const width = this.host.clientWidth;
    if (width && width !== this.hostWidth) this.layout();
  }

  layout() {
    this.hostWidth = this.host.clientWidth;
    if (!this.hostWidth || !this.axes.length) return;
    this.height = this.hostWidth < 620 ? 350 : 430;
    this.hasBand = this.axes.some((axis) => axis.hasMissing);
    this.measure();
    this.scaleBy = Math.min(window.devicePixelRatio || 1, 2);
    this.box.style.width = `${this.width}px`;
    this.box.style.height = `${this.height}px`;
    for (const canvas of this.layers) {
      canvas.width = Math.round(this.width * this.scaleBy);
      canvas.height = Math.round(this.height * this.scaleBy);
      canvas.style.width = `${this.width}px`;
      canvas.style.height = `${this.height}px`;
    }
    this.axes.forEach((axis, n) => { axis.x = Math.round(this.left + n * this.step); axis.y = this.heights(axis); });
    this.front.dataset.axes = JSON.stringify({ top: this.top, floor: this.floor, band: this.bandY, at: Object.fromEntries(this.axes.map((axis) => [axis.key, axis.x])) });
    this.ready = true;
    this.drawContext();
    this.drawChosen();
    this.drawFront();
  }

  // Margins from what is written in them: ticks of the first axis stand left of it, those of the last right of it, and names
  // take as many lines as they need.
  measure() {
    const pen = this.front.getContext('2d'), last = this.axes.length - 1;
    this.floor = this.height - PARALLEL.bottom - (this.hasBand ? PARALLEL.band : 0);
    this.bandY = this.height - PARALLEL.bottom - PARALLEL.band / 2 + 2;
    this.top = 60;
    const margin = (axis, least) => { pen.font = TICK_FONT; return clamp(Math.max(...this.ticks(axis).map(([, text]) => pen.measureText(text).width), axis.hasMissing ? pen.measureText(axis.missing).width : 0) + 14, least, 150); };
    this.left = margin(this.axes[0], 44);
    this.right = last > 0 ? margin(this.axes[last], 44) : 60;
    this.width = Math.max(this.hostWidth, this.left + this.right + last * PARALLEL.gap);
    this.step = last > 0 ? (this.width - this.left - this.right) / last : 0;
    pen.font = HEAD_FONT;
    const room = last > 0 ? this.step - 10 : 200;
    for (const axis of this.axes) axis.head = wrapped(pen, axis.label + (axis.log ? ' (log)' : ''), room);
    this.top = 12 + PARALLEL.head * Math.max(...this.axes.map((axis) => axis.head.length)) + 12;
  }

  // Where every trial crosses an axis. Whole numbers with few values and choices are spread a little, so that they show their number.
  heights(axis) {
    const places = new Float32Array(this.size), tall = this.floor - this.top, spread = axis.kind === 'choice' ? Math.min(tall / axis.labels.length, 24) * 0.5 : 0;
    const [low, high] = axis.bent, scale = tall / (high - low), { values, log } = axis;
    for (let i = 0; i < this.size; i++) {
      const value = values[i], noise = ((i * 2654435761) >>> 0) / 4294967296 - 0.5;
      places[i] = value !== value ? this.bandY + noise * (PARALLEL.band - 12) : this.floor - ((log ? Math.log(value) : value) - low) * scale + noise * spread;
    }
    return places;
  }

  // ---- drawing ---------------------------------------------------------------------------------------------------------

  // Count of lines per pixel (and the sum of their shades): one addition for each column that a line crosses.
  newCounts(withShades) {
    const size = this.context.width * this.context.height;
    return { counts: new (this.size < 65000 ? Uint16Array : Uint32Array)(size), sums: withShades ? new Float32Array(size) : null };
  }

  countLines({ counts, sums }, rows, first, last, shades) {
    const width = this.context.width, scale = this.scaleBy * 65536;
    for (let gap = 0; gap + 1 < this.axes.length; gap++) {
      const from = this.axes[gap], to = this.axes[gap + 1], begin = Math.round(from.x * this.scaleBy), end = Math.round(to.x * this.scaleBy), left = from.y, right = to.y;
      for (let n = first; n < last; n++) {
        const row = rows[n];
        let y = (left[row] * scale) | 0;
        const slope = ((right[row] * scale - y) / (end - begin)) | 0;
        if (sums) { const shade = shades[row]; for (let x = begin; x < end; x++) { const at = (y >> 16) * width + x; counts[at]++; sums[at] += shade; y = (y + slope) | 0; } }
        else for (let x = begin; x < end; x++) { counts[(y >> 16) * width + x]++; y = (y + slope) | 0; }
      }
    }
  }

  paintCounts(canvas, { counts, sums, below }, colorAt, faintest) {
    const pen = canvas.getContext('2d'), image = pen.createImageData(canvas.width, canvas.height), pixels = new Uint32Array(image.data.buffer);
    let most = 1;
    for (let i = 0; i < counts.length; i++) if (counts[i] > most) most = counts[i];
    const opacity = new Uint8Array(most + 1), scale = Math.log(most + 1);
    for (let c = 1; c <= most; c++) opacity[c] = Math.round(255 * Math.min(faintest + (1 - faintest) * (Math.log(c + 1) / scale), 1));
    const palette = new Uint32Array(256), [red, green, blue] = rgbOf(colorOf('soft')), grey = (blue << 16) | (green << 8) | red;
    for (let n = 0; n < 256; n++) { const [r, g, b] = colorAt(n / 255); palette[n] = (b << 16) | (g << 8) | r; }
    for (let i = 0; i < counts.length; i++) {
      const count = counts[i];
      if (count) pixels[i] = ((opacity[count] << 24) | palette[sums ? Math.min((sums[i] / count) * 255, 255) | 0 : 128]) >>> 0;
      else if (below && below[i]) pixels[i] = ((0x90 << 24) | grey) >>> 0;
    }
    pen.putImageData(image, 0, 0);
  }

  // The selected trials by the colour of their rank; what is not ranked lies below them in grey.
  paintChosen(rows, isMoving) {
    const shades = this.options.shades(), ranked = new Uint32Array(rows.length), others = new Uint32Array(rows.length);
    let numRanked = 0, numOthers = 0;
    for (let n = 0; n < rows.length; n++) { const row = rows[n]; if (shades[row] === NOT_RANKED) others[numOthers++] = row; else ranked[numRanked++] = row; }
    this.paintLines('chosen', ranked.subarray(0, numRanked), shades, shadeColor, 0.3, isMoving, others.subarray(0, numOthers));
  }

  // Lines in slices of a few milliseconds: an even part of very many is painted at once, and all of them when all are counted.
  // A newer picture for the same layer ends an older one.
  paintLines(layer, rows, shades, colorAt, faintest, isMoving = false, others = null) {
    const canvas = this[layer];
    clearTimeout(this.jobs[layer]);
    const step = Math.ceil(rows.length / (isMoving ? PREVIEWED / 2 : PREVIEWED)), preview = step > 1 ? everyNth(rows, step) : rows;
    const quick = this.newCounts(Boolean(shades));
    this.countLines(quick, preview, 0, preview.length, shades);
    const below = (most) => { if (!others || !others.length) return null; const part = everyNth(others, Math.ceil(others.length / most)), counted = this.newCounts(false); this.countLines(counted, part, 0, part.length, null); return counted.counts; };
    quick.below = below(step > 1 ? PREVIEWED / 10 : PREVIEWED);
    this.paintCounts(canvas, quick, colorAt, faintest);
    if (step === 1) return;
    const whole = this.newCounts(Boolean(shades));
    let done = 0;
    const slice = () => {
      const started = performance.now();
      while (done < rows.length && performance.now() - started < 8) { const next = Math.min(done + 500, rows.length); this.countLines(whole, rows, done, next, shades); done = next; }
      if (done < rows.length) this.jobs[layer] = setTimeout(slice, 0); else { whole.below = below(PREVIEWED); this.paintCounts(canvas, whole, colorAt, faintest); }
    };
    this.jobs[layer] = setTimeout(slice, isMoving ? 400 : 30);
  }

  drawContext() {
    if (!this.ready) return;
    const rows = Uint32Array.from({ length: this.size }, (_, i) => i), grey = rgbOf(colorOf('context'));
    this.paintLines('context', rows, null, () => grey, this.size > 200 ? 0.12 : 0.5);
  }

  drawChosen(isMoving = false) {
    if (!this.ready || !this.selected) return;
    const rows = this.selected.rows(), pen = this.chosen.getContext('2d');
    clearTimeout(this.jobs.chosen);
    if (rows.length > STROKED) { this.paintChosen(rows, isMoving); return; }
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.clearRect(0, 0, this.chosen.width, this.chosen.height);
    this.strokeLines(pen, rows);
  }

  strokeLines(pen, rows) {
    const shades = this.options.shades(), groups = Array.from({ length: BUCKETS + 1 }, () => []);
    for (const row of rows) groups[shades[row] === NOT_RANKED ? BUCKETS : Math.min(Math.floor(shades[row] * BUCKETS), BUCKETS - 1)].push(row);
    pen.setTransform(this.scaleBy, 0, 0, this.scaleBy, 0, 0);
    pen.lineWidth = rows.length > 300 ? 0.8 : rows.length > 40 ? 1.2 : 1.8;
    pen.globalAlpha = rows.length > 600 ? 0.4 : rows.length > 100 ? 0.65 : 0.9;
    // The worst first, so that the best lie on top; what ended badly before all, dashed.
    for (let n = BUCKETS; n >= 0; n--) {
      if (!groups[n].length) continue;
      pen.strokeStyle = n === BUCKETS ? colorOf('soft') : `rgb(${shadeColor((n + 0.5) / BUCKETS).join(' ')})`;
      pen.setLineDash(n === BUCKETS ? [5, 4] : []);
      for (let first = 0; first < groups[n].length; first += 60) {
        pen.beginPath();
        for (const row of groups[n].slice(first, first + 60)) this.trace(pen, row);
        pen.stroke();
      }
    }
    pen.globalAlpha = 1;
  }

  trace(pen, row) { this.axes.forEach((axis, n) => (n ? pen.lineTo(axis.x, axis.y[row]) : pen.moveTo(axis.x, axis.y[row]))); }

  drawFront() {
    if (!this.ready) return;
    const pen = this.front.getContext('2d');
    pen.setTransform(this.scaleBy, 0, 0, this.scaleBy, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    if (this.hasBand) {
      pen.globalAlpha = 0.16; pen.fillStyle = colorOf('soft');
      pen.fillRect(2, this.floor + 6, this.width - 4, PARALLEL.band - 2);
      pen.globalAlpha = 1;
    }
    const isHovered = this.hovered !== null && this.hovered < this.size;
    if (isHovered) for (const [color, width] of [[colorOf('card'), 5], [colorOf('ink'), 2.2]]) { pen.strokeStyle = color; pen.lineWidth = width; pen.beginPath(); this.trace(pen, this.hovered); pen.stroke(); }
    this.axes.forEach((axis, n) => this.drawAxis(pen, axis, n));
    if (isHovered) {
      pen.fillStyle = colorOf('ink');
      for (const axis of this.axes) { pen.beginPath(); pen.arc(axis.x, axis.y[this.hovered], 3.2, 0, 7); pen.fill(); }
    }
  }

  drawAxis(pen, axis, number) {
    const isLast = number === this.axes.length - 1 && number > 0, focused = document.activeElement === this.front && this.focused === number;
    pen.strokeStyle = focused ? colorOf('focus') : colorOf('soft'); pen.lineWidth = focused ? 2.4 : 1.2;
    pen.beginPath(); pen.moveTo(axis.x, this.top); pen.lineTo(axis.x, this.floor); pen.stroke();
    pen.font = HEAD_FONT; pen.fillStyle = colorOf('ink'); pen.textBaseline = 'alphabetic'; pen.textAlign = 'center';
    const half = Math.max(...axis.head.map((line) => pen.measureText(line).width)) / 2, middle = clamp(axis.x, half + 2, Math.max(this.width - half - 2, half + 2));
    axis.head.forEach((line, n) => pen.fillText(line, middle, this.top - 12 - PARALLEL.head * (axis.head.length - 1 - n)));
    pen.font = TICK_FONT; pen.textBaseline = 'middle';
    const isFirst = number === 0, room = isFirst ? this.left - 12 : isLast ? this.right - 8 : this.step - 14;
    pen.textAlign = isFirst ? 'right' : 'left';
    for (const [value, text] of this.ticks(axis)) {
      const y = this.floor - this.share(axis, value) * (this.floor - this.top);
      pen.strokeStyle = colorOf('soft'); pen.lineWidth = 1;
      pen.beginPath(); pen.moveTo(axis.x - 4, y); pen.lineTo(axis.x, y); pen.stroke();
      plateText(pen, fitted(pen, text, room), axis.x + (isFirst ? -8 : 6), y);
    }
    if (axis.hasMissing) plateText(pen, fitted(pen, axis.missing, room), axis.x + (isFirst ? -8 : 6), this.bandY);
    const brush = this.brushes.get(axis.key);
    if (brush) this.drawBrush(pen, axis, brush);
  }

  drawBrush(pen, axis, brush) {
    const tall = this.floor - this.top, x = axis.x - 9;
    pen.fillStyle = colorOf('focus'); pen.strokeStyle = colorOf('focus'); pen.lineWidth = 1.5;
    if (brush.high !== null) {
      const top = this.floor - brush.high * tall, bottom = this.floor - brush.low * tall;
      pen.globalAlpha = 0.24; pen.fillRect(x, top, 18, bottom - top); pen.globalAlpha = 1; pen.strokeRect(x, top, 18, bottom - top);
    }
    if (brush.missing) { pen.globalAlpha = 0.24; pen.fillRect(x, this.floor + 6, 18, PARALLEL.band - 2); pen.globalAlpha = 1; pen.strokeRect(x, this.floor + 6, 18, PARALLEL.band - 2); }
  }

  ticks(axis) {
    if (axis.kind === 'choice') {
      const step = Math.ceil(axis.labels.length / 14);
      return withoutSharedStart(axis.labels).map((label, n) => [n, label]).filter((_, n) => n % step === 0);
    }
    if (axis.marks) return apart(axis.marks, 14 / (this.floor - this.top), (value) => this.share(axis, value)).map((value) => [value, unitText(value, axis.unit)]);
    return numberTicks(axis).map((value) => [value, axis.unit === 'bytes' ? tickText(value) : unitText(value, axis.unit)]);
  }

  // ---- filters ---------------------------------------------------------------------------------------------------------

  // The trials that every filter lets through.
  passing() {
    const bits = new Bits(this.size).fill();
    for (const [key, brush] of this.brushes) {
      const axis = this.axes.find((each) => each.key === key);
      if (!axis) continue;
      const own = new Bits(this.size), [low, high] = this.limits(axis, brush);
      for (let i = 0; i < this.size; i++) { const value = axis.values[i]; if (value !== value ? brush.missing : value >= low && value <= high) own.add(i); }
      bits.and(own);
    }
    return bits;
  }

  limits(axis, brush) {
    if (brush.high === null) return [Infinity, -Infinity];
    // A filter that reaches an end of the axis holds what lies there, whatever rounding does to the end itself.
    const low = brush.low <= 0.0005 ? -Infinity : this.valueAt(axis, brush.low), high = brush.high >= 0.9995 ? Infinity : this.valueAt(axis, brush.high);
    return [low, high];
  }

  setBrush(axis, brush, isMoving = false) {
    if (brush) this.brushes.set(axis.key, brush); else this.brushes.delete(axis.key);
    this.drawFront();
    this.options.onBrush(isMoving);
  }

  clear() { this.brushes.clear(); this.drawFront(); this.options.onBrush(false); }
  setSelected(bits, isMoving = false) { this.selected = bits; this.drawChosen(isMoving); }
  setHovered(row) { if (row !== this.hovered) { this.hovered = row; this.drawFront(); } }

  // 'lr:0.001~0.1;batch:~!' -> filters, and back; the ends are values, '!' stands for what is not set.
  brushText() {
    const parts = [];
    for (const [key, brush] of this.brushes) {
      const axis = this.axes.find((each) => each.key === key);
      if (!axis) continue;
      const ends = brush.high === null ? '~' : [brush.low, brush.high].map((share) => Number(this.valueAt(axis, share).toPrecision(7))).join('~');
      parts.push(`${encodeURIComponent(key)}:${ends}${brush.missing ? '!' : ''}`);
    }
    return parts.join(';');
  }

  readBrushes(text) {
    this.brushes.clear();
    for (const part of (text || '').split(';')) {
      const [key, ends] = part.split(':'), axis = this.axes.find((each) => each.key === decodeURIComponent(key || ''));
      if (!axis || !ends) continue;
      const missing = ends.endsWith('!'), [low, high] = ends.replace('!', '').split('~').map((end) => (end === '' ? null : Number(end)));
      if (low === null) this.brushes.set(axis.key, { low: null, high: null, missing });
      else if (Number.isFinite(low) && Number.isFinite(high)) this.brushes.set(axis.key, { low: clamp(this.share(axis, low), 0, 1), high: clamp(this.share(axis, high), 0, 1), missing });
    }
    this.drawFront();
  }

  // ---- hands -----------------------------------------------------------------------------------------------------------

  place(event) { const box = this.front.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; }

  axisAt(x, reach = 20) {
    let best = null;
    for (const axis of this.axes) if (Math.abs(axis.x - x) <= reach && (!best || Math.abs(axis.x - x) < Math.abs(best.x - x))) best = axis;
    return best;
  }

  press(event) {
    if (event.button !== 0) return;
    const [x, y] = this.place(event), axis = this.axisAt(x);
    if (axis) this.focused = this.axes.indexOf(axis);
    if (y < this.top - 8) { const named = this.axisAt(x, PARALLEL.gap / 2); if (named) this.options.onLabel(named); return; }
    if (!axis) { const row = this.nearest(x, y); if (row !== null) this.options.onPick(row); return; }
    const brush = this.brushes.get(axis.key), share = this.shareAt(y);
    this.front.setPointerCapture(event.pointerId);
    const edge = brush && brush.high !== null ? this.edgeAt(brush, y) : null, inner = edge === null && brush && brush.high !== null && share > brush.low && share < brush.high;
    this.drag = { axis, from: edge === null ? share : edge === 'high' ? brush.low : brush.high, y, moved: inner ? { low: brush.low, high: brush.high, missing: brush.missing } : null, isNew: true };
    event.preventDefault();
    this.front.focus();
  }

  // Which end of a filter is under the mouse.
  edgeAt(brush, y) {
    const tall = this.floor - this.top, far = (share) => Math.abs(this.floor - share * tall - y);
    if (Math.min(far(brush.high), far(brush.low)) > PARALLEL.reach) return null;
    return far(brush.high) <= far(brush.low) ? 'high' : 'low';
  }

  shareAt(y) { return (this.floor - y) / (this.floor - this.top); }

  move(event) {
    const [x, y] = this.place(event);
    if (!this.drag) {
      const axis = this.axisAt(x), named = y < this.top - 8 ? this.axisAt(x, PARALLEL.gap / 2) : null;
      this.front.style.cursor = named ? (named.canLog ? 'pointer' : 'default') : axis ? 'ns-resize' : 'pointer';
      this.hover(axis || named ? null : this.nearest(x, y));
      if (named) this.options.onSay(`${named.label}${named.canLog ? `: click for a ${named.log ? 'linear' : 'logarithmic'} scale` : ''}`);
      return;
    }
    const drag = this.drag;
    if (Math.abs(y - drag.y) < 3 && drag.isNew) return;
    drag.isNew = false;
    const share = this.shareAt(y);
    if (drag.moved) {
      const shift = clamp(share - drag.from, -drag.moved.low, 1 - drag.moved.high);
      this.setBrush(drag.axis, { low: drag.moved.low + shift, high: drag.moved.high + shift, missing: drag.moved.missing }, true);
      return;
    }
    const low = Math.min(drag.from, share), high = Math.max(drag.from, share);
    const missing = drag.axis.hasMissing && low < -0.01, isOnly = missing && high < 0.005;
    this.setBrush(drag.axis, { low: isOnly ? null : clamp(low, 0, 1), high: isOnly ? null : clamp(high, 0, 1), missing }, true);
  }

  release(event) {
    const drag = this.drag;
    this.drag = null;
    if (!drag) return;
    if (drag.isNew) {
      const [, y] = this.place(event), inBand = drag.axis.hasMissing && y > this.floor + 4;
      if (inBand) this.setBrush(drag.axis, { low: null, high: null, missing: true });
      else if (this.brushes.has(drag.axis.key)) this.setBrush(drag.axis, null);
      else if (drag.axis.kind === 'choice') this.setBrush(drag.axis, this.oneChoice(drag.axis, this.shareAt(y)));
    } else this.options.onBrush(false);
  }

  oneChoice(axis, share) {
    const code = clamp(Math.round(this.valueAt(axis, share)), 0, axis.labels.length - 1);
    return { low: clamp(this.share(axis, code - 0.45), 0, 1), high: clamp(this.share(axis, code + 0.45), 0, 1), missing: false };
  }

  // The selected line nearest to a point, within a few pixels.
  nearest(x, y) {
    if (!this.selected) return null;
    let gap = 0;
    while (gap + 2 < this.axes.length && this.axes[gap + 1].x < x) gap++;
    const from = this.axes[gap], to = this.axes[gap + 1];
    if (!to || x < from.x || x > to.x) return null;
    const part = (x - from.x) / (to.x - from.x);
    let best = null, least = 9;
    for (let i = 0; i < this.size; i++) {
      if (!this.selected.has(i)) continue;
      const distance = Math.abs(from.y[i] + part * (to.y[i] - from.y[i]) - y);
      if (distance < least) { least = distance; best = i; }
    }
    return best;
  }

  hover(row) { this.setHovered(row); this.options.onHover(row); }

  key(event) {
    const axis = this.axes[this.focused], brush = axis && this.brushes.get(axis.key);
    const towards = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    if (event.key === 'ArrowLeft' || event.key === 'ArrowRight') this.focused = clamp(this.focused + (event.key === 'ArrowLeft' ? -1 : 1), 0, this.axes.length - 1);
    else if (event.key === 'l' && axis) this.options.onLabel(axis);
    else if (event.key === 'n' && axis) { if (axis.hasMissing) this.setBrush(axis, { low: null, high: null, missing: true }); }
    else if (event.key === 'Delete' || event.key === 'Backspace') { if (axis) this.setBrush(axis, null); }
    else if (towards && axis) {
      const old = brush && brush.high !== null ? brush : { low: 0.8, high: 1 }, step = axis.kind === 'choice' ? 1 / axis.labels.length : 0.05;
      if (event.shiftKey) this.setBrush(axis, { low: clamp(old.low - towards * step, 0, old.high - 0.01), high: old.high, missing: false });
      else { const shift = brush ? clamp(towards * step, -old.low, 1 - old.high) : 0; this.setBrush(axis, { low: old.low + shift, high: old.high + shift, missing: false }); }
    } else return;
    event.preventDefault();
    this.drawFront();
    if (axis) this.options.onSay(`${this.axes[this.focused].label}: ${this.limitsText(this.axes[this.focused])}`);
  }

  limitsText(axis) {
    const brush = this.brushes.get(axis.key);
    if (!brush) return 'no filter';
    if (brush.high === null) return axis.missing;
    return brush.low === null ? '' : [brush.low, brush.high].map((share) => (axis.kind === 'choice' ? axis.labels[clamp(Math.round(this.valueAt(axis, share)), 0, axis.labels.length - 1)] : unitText(this.valueAt(axis, share), axis.unit))).join(' to ');
  }

  picture() {
    const paper = onPaper(this.layers, this.width, this.height, this.scaleBy);
    return paper;
  }
}

function everyNth(rows, step) {
  const kept = new Uint32Array(Math.ceil(rows.length / step));
  for (let n = 0, k = 0; n < rows.length; n += step) kept[k++] = rows[n];
  return kept;
}

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

// Text on a plate of the card's own colour: it stands above lines, and is read over any number of them.
function plateText(pen, text, x, y) {
  const wide = pen.measureText(text).width, left = pen.textAlign === 'right' ? x - wide : x;
  pen.fillStyle = colorOf('card'); pen.globalAlpha = 0.82; pen.fillRect(left - 2, y - 7.5, wide + 4, 15);
  pen.globalAlpha = 1; pen.fillStyle = colorOf('ink'); pen.fillText(text, x, y);
}

// Long options without the beginning that all of them share: cutting their ends would make them alike.
function withoutSharedStart(labels) {
  const sorted = [...labels].sort(), first = sorted[0] || '', last = sorted[sorted.length - 1] || '';
  let shared = 0;
  while (shared < first.length && first[shared] === last[shared]) shared++;
  return shared < 4 || labels.length < 2 || Math.max(...labels.map((label) => label.length)) <= 12 ? labels : labels.map((label) => `…${label.slice(shared)}`);
}

// A name in lines of a width, broken after spaces, slashes, underscores and dots; a part that is too long loses its middle.
function wrapped(pen, text, width) {
  const lines = [''];
  for (const word of text.match(/[^\s/_.]*[\s/_.]?/g).filter(Boolean)) {
    const last = lines[lines.length - 1];
    if (!last || pen.measureText((last + word).trimEnd()).width <= width) lines[lines.length - 1] = last + word; else lines.push(word);
  }
  return lines.slice(0, 3).map((line, n) => middleCut(pen, (n === 2 && lines.length > 3 ? lines.slice(2).join('') : line).trim(), width));
}

function middleCut(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let kept = text.length - 1;
  const cut = () => `${text.slice(0, Math.ceil(kept / 2))}…${text.slice(text.length - Math.floor(kept / 2))}`;
  while (kept > 2 && pen.measureText(cut()).width > width) kept--;
  return cut();
}

// The different values of a column in their order, or null where there are more than a few.
function fewValues(values, most) {
  const found = new Set();
  for (const value of values) if (value === value && found.size <= most) found.add(value);
  // Values that take many digits to write are not what somebody chose from a list.
  return found.size && found.size <= most && [...found].every((value) => String(value).length <= 6) ? [...found].sort((a, b) => a - b) : null;
}

// Those of some values that stand at least so far apart on an axis; the first and the last are among them.
function apart(values, least, share) {
  const kept = [];
  for (const value of values) if (!kept.length || share(value) - share(kept[kept.length - 1]) >= least) kept.push(value);
  const last = values[values.length - 1];
  if (kept[kept.length - 1] !== last) kept[kept.length - 1] = last;
  return kept;
}

function fitted(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let cut = text.length;
  while (cut > 2 && pen.measureText(`${text.slice(0, cut)}…`).width > width) cut--;
  return `${text.slice(0, cut)}…`;
}

function numberTicks(axis) {
  if (axis.log) {
    const ticks = [], first = Math.floor(Math.log10(axis.low)), last = Math.ceil(Math.log10(axis.high)), every = Math.max(1, Math.ceil((last - first) / 6));
    for (let power = first; power <= last; power += every) for (const times of last - first <= 1 ? [1, 2, 5] : last - first <= 2 ? [1, 3] : [1]) { const value = times * 10 ** power; if (value >= axis.low * 0.999 && value <= axis.high * 1.001) ticks.push(value); }
    if (ticks.length > 1) return ticks;
  }
  const span = axis.high - axis.low, base = axis.unit === 'bytes' ? 2 ** Math.floor(Math.log2(span / 4)) : 10 ** Math.floor(Math.log10(span / 4));
  const step = axis.unit === 'bytes' ? base : [1, 2, 5, 10].map((times) => times * base).find((each) => span / each <= 6) || base * 10, ticks = [];
  for (let value = Math.ceil(axis.low / step) * step; value <= axis.high + step * 1e-6; value += step) ticks.push(Number(value.toPrecision(12)));
  return ticks;
}

function rgbOf(color) {
  const hex = /^#(..)(..)(..)$/.exec(color);
  return hex ? hex.slice(1).map((part) => parseInt(part, 16)) : [128, 128, 128];
}

// From the best (0) to the worst (1): blue, violet, orange; in order for any colour vision, and none of them is grey.
function shadeColor(share) {
  const [from, to, part] = share < 0.5 ? ['shade0', 'shade1', share * 2] : ['shade1', 'shade2', share * 2 - 1];
  const a = shadeStops[from], b = shadeStops[to];
  return a.map((value, n) => Math.round(value + (b[n] - value) * part));
}
const shadeStops = {};
function readShades() { for (const name of ['shade0', 'shade1', 'shade2']) shadeStops[name] = rgbOf(colorOf(name)); }
