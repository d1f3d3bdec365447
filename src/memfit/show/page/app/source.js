// Where records come from: the data inside of a report, or the server that sent this page.
const inside = JSON.parse(byId('memfit-data').textContent);
const versions = new Map();

async function ask(address, options = {}) {
  const response = await fetch(`api/${address}`, { credentials: 'same-origin', ...options });
  if (response.status === 304) return null;
  const answer = await response.json().catch(() => ({ what: `the server answered ${response.status}` }));
  if (!response.ok) throw new Error([answer.what, answer.found, answer.hint].filter(Boolean).join('; '));
  return { answer, headers: response.headers };
}

const query = (values) => new URLSearchParams(values).toString();

const source = {
  isServed: inside.served,
  async list() {
    if (!inside.served) return { title: inside.title, items: inside.items, is_whole: true, left_out: inside.left_out };
    return (await ask('list')).answer;
  },
  async document(id) {
    if (!inside.served) {
      if (!inside.documents[id]) throw new Error('This record is not in the file.');
      return inside.documents[id];
    }
    const { answer, headers } = await ask(`document?${query({ id })}`);
    versions.set(id, { tag: headers.get('etag'), seconds: Number(headers.get('x-read-seconds') || 0) });
    return answer;
  },
  // The record if it has changed since it was last asked for, else null.
  async changed(id) {
    if (!inside.served) return null;
    const known = versions.get(id);
    const found = await ask(`document?${query({ id })}`, { headers: known ? { 'If-None-Match': known.tag } : {} });
    if (found === null) return null;
    versions.set(id, { tag: found.headers.get('etag'), seconds: Number(found.headers.get('x-read-seconds') || 0) });
    return found.answer;
  },
  // A record that took long to read is asked for less often.
  pause(id) { return Math.max(1500, 5000 * ((versions.get(id) || {}).seconds || 0)); },
  async window(id, from, to, rows) {
    if (!inside.served) return null;
    return (await ask(`window?${query({ id, from, to, rows })}`)).answer;
  },
  async trial(id, number) {
    if (inside.served) return (await ask(`trial?${query({ id, number })}`)).answer;
    return inside.extras[`trial?id=${id}&number=${number}`] || null;
  },
  async curves(id, numbers) {
    return inside.served ? (await ask(`curves?${query({ id, numbers: numbers.join(',') })}`)).answer : null;
  },
  // What takes long to find out; a report has it inside of its documents.
  async later(id, name) { return inside.served ? (await ask(`later?${query({ id, name })}`)).answer : null; },
  async snapshot(file) {
    return (await ask(`snapshot?${query({ name: file.name })}`, { method: 'POST', body: file })).answer;
  },
};
