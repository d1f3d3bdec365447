// Packed columns -> typed arrays; a missing value is NaN.
const COLUMN_TYPES = { u1: [Uint8Array, 0xff], u2: [Uint16Array, 0xffff], u4: [Uint32Array, 0xffffffff], f8: [Float64Array, null] };

function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const raw = atob(base64), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

function columnOf(packed) {
  if (!packed) return new Float64Array(0);
  const [kind, missing] = COLUMN_TYPES[packed.type], bytes = bytesOf(packed.base64);
  const raw = new kind(bytes.buffer, bytes.byteOffset, packed.count);
  if (missing === null) return raw;
  const values = new Float64Array(raw.length);
  for (let i = 0; i < raw.length; i++) values[i] = raw[i] === missing ? NaN : raw[i];
  return values;
}

// A set of rows as one bit each.
class Bits {
  constructor(size) { this.size = size; this.words = new Uint32Array((size + 31) >> 5); }
  has(i) { return (this.words[i >> 5] >>> (i & 31)) & 1; }
  add(i) { this.words[i >> 5] |= 1 << (i & 31); }
  fill() { this.words.fill(0xffffffff); const rest = this.size & 31; if (rest) this.words[this.words.length - 1] = (1 << rest) - 1 >>> 0; return this; }
  and(other) { for (let i = 0; i < this.words.length; i++) this.words[i] &= other.words[i]; return this; }
  count() {
    let total = 0;
    for (let word of this.words) { word -= (word >>> 1) & 0x55555555; word = (word & 0x33333333) + ((word >>> 2) & 0x33333333); total += (((word + (word >>> 4)) & 0x0f0f0f0f) * 0x01010101) >>> 24; }
    return total;
  }
  // The rows of the set in their own order, or in that of a list of rows.
  rows(order = null) {
    const rows = new Uint32Array(this.count());
    let n = 0;
    if (order) { for (let k = 0; k < order.length; k++) if (this.has(order[k])) rows[n++] = order[k]; return rows.subarray(0, n); }
    for (let w = 0; w < this.words.length; w++) for (let word = this.words[w]; word; word &= word - 1) rows[n++] = (w << 5) + 31 - Math.clz32(word & -word);
    return rows;
  }
}
