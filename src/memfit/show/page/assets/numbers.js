// How are packed numbers read, and how are bytes, seconds and figures written for the eye? The words match the terminal's.
const MISSING = 0xFFFFFFFF;
const KIB = 1024, MIB = KIB * 1024, GIB = MIB * 1024, TIB = GIB * 1024;

function unpack(packed) {
  const raw = atob(packed.base64), view = new DataView(new ArrayBuffer(raw.length));
  for (let i = 0; i < raw.length; i++) view.setUint8(i, raw.charCodeAt(i));
  const values = new Float64Array(packed.count);
  for (let i = 0; i < packed.count; i++) {
    const number = view.getUint32(i * 4, true);
    values[i] = number === MISSING ? NaN : number * packed.unit;
  }
  return values;
}

function unpackLevel(level) {
  const low = unpack(level.low_bytes);
  const time = unpack(level.time_us).map((us) => us / 1e6);
  return { time, low, high: level.high_bytes ? unpack(level.high_bytes) : low, samplesPerRow: level.samples_per_row };
}

const threeDigits = (value) => (value < 10 ? value.toFixed(2) : value.toFixed(1));

function bytesText(bytes) {
  const size = Math.abs(bytes), sign = bytes < 0 ? '-' : '';
  for (const [unit, factor] of [['TiB', TIB], ['GiB', GIB], ['MiB', MIB], ['KiB', KIB]]) {
    if (size >= factor * 0.99995) return `${sign}${threeDigits(size / factor)} ${unit}`;
  }
  return `${sign}${size.toFixed(0)} B`;
}

function tickText(bytes) {
  for (const [unit, factor] of [['TiB', TIB], ['GiB', GIB], ['MiB', MIB], ['KiB', KIB]]) {
    if (bytes >= factor) return `${+(bytes / factor).toFixed(3)} ${unit}`;
  }
  return bytes ? `${bytes} B` : '0';
}

function secondsText(seconds) {
  if (seconds < 0) return `-${secondsText(-seconds)}`;
  if (seconds === 0) return '0 s';
  if (seconds < 1e-3) return `${(seconds * 1e6).toFixed(0)} us`;
  if (seconds < 1) return `${threeDigits(seconds * 1e3)} ms`;
  if (seconds < 60) return `${threeDigits(seconds)} s`;
  const whole = Math.round(seconds), minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes} min ${String(whole % 60).padStart(2, '0')} s`;
  return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, '0')} min`;
}

function clockText(seconds, span) {
  return clockDigits(seconds, span < 0.05 ? 4 : span < 1 ? 3 : span < 20 ? 2 : span < 300 ? 1 : 0);
}

function clockDigits(seconds, digits) {
  if (seconds < 120) return `${seconds.toFixed(digits)} s`;
  const whole = digits ? seconds : Math.round(seconds), hours = Math.floor(whole / 3600);
  const minutes = Math.floor((whole % 3600) / 60), rest = (whole % 60).toFixed(digits).padStart(digits ? digits + 3 : 2, '0');
  return hours ? `${hours}:${String(minutes).padStart(2, '0')}:${rest}` : `${minutes}:${rest}`;
}

// Labels of an axis of time: as many digits as its steps need, and one form for all of them.
function clockTicks(ticks) {
  const step = ticks.length > 1 ? ticks[1] - ticks[0] : 1, digits = [0, 1, 2, 3, 4].find((each) => Math.abs(Math.round(step * 10 ** each) - step * 10 ** each) < 1e-6) ?? Math.max(Math.ceil(-Math.log10(step) - 1e-9), 4);
  const isLong = ticks.some((tick) => tick >= 120), minutes = (tick) => `${Math.floor(tick / 60)}:${(tick % 60).toFixed(digits).padStart(digits ? digits + 3 : 2, '0')}`;
  return ticks.map((tick) => (!isLong || tick >= 3600 ? clockDigits(tick, digits) : minutes(tick)));
}

function valueText(value, unit) {
  if (unit === 'bytes') return bytesText(value);
  if (unit === 'seconds') return secondsText(value);
  if (unit === 'ratio') return `${(value * 100).toFixed(1)} %`;
  if (unit === 'joules') return Math.abs(value) >= 1000 ? `${(value / 1000).toFixed(2)} kJ` : `${value.toFixed(2)} J`;
  if (unit === 'watts') return `${value.toFixed(1)} W`;
  return value.toLocaleString('en', { maximumSignificantDigits: 3 });
}

const known = (figure) => figure && figure.value !== null && figure.value !== undefined;

function figureNode(figure, missing) {
  const node = document.createElement('span');
  if (!known(figure)) {
    node.textContent = missing === undefined ? `unknown: ${figure ? figure.reason : 'not recorded'}` : missing;
    if (figure && figure.reason) node.title = figure.reason;
    return node;
  }
  node.textContent = valueText(figure.value, figure.unit);
  if (figure.method) node.title = `${figure.source}: ${figure.method}`;
  if (figure.source !== 'measured') node.append(element('span', 'mark', figure.source));
  return node;
}

function boundsText(figure) {
  if (!known(figure)) return '';
  const low = figure.low ?? null, high = figure.high ?? null;
  if (low === null && high === null) return figure.source === 'measured' && /high-water/.test(figure.method || '') ? 'exact' : '';
  if (high === null) return 'at least';
  return `between ${valueText(low ?? figure.value, figure.unit)} and ${valueText(high, figure.unit)}`;
}

function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined && text !== null) node.textContent = text;
  return node;
}

const byId = (id) => document.getElementById(id);
// Colours of the page by name, read once for each theme: reading one makes the browser work out the style of the whole page.
const knownColors = new Map();
function colorOf(name) {
  const key = `${document.documentElement.dataset.theme}/${name}`;
  if (!knownColors.has(key)) knownColors.set(key, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim() || '#888');
  return knownColors.get(key);
}
// The first index whose value is above x: arrays of times are sorted.
function upperIndex(values, x) {
  let low = 0, high = values.length;
  while (low < high) { const middle = (low + high) >> 1; if (values[middle] <= x) low = middle + 1; else high = middle; }
  return low;
}
