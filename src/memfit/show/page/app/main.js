// Which section draws which kind of record; routes by the address, keeps a growing record fresh, keyboard and theme.
const sections = { run: runSection, study: studySection, prediction: predictionSection, plan: planSection, pipeline: pipelineSection, grid: gridSection, snapshot: snapshotSection };

let shownAt = '', ticket = 0;

async function show() {
  const { kind, id } = readAddress(), host = byId('main'), mine = ++ticket;
  leave();
  delete document.documentElement.dataset.ready;
  byId('live').textContent = '';
  shownAt = `${kind}/${id}`;
  try {
    const items = kind ? null : (await source.list()).items;
    if (!kind && items.length === 1 && items[0].kind in sections) { history.replaceState(null, '', addressOf(items[0].kind, items[0].id)); await show(); return; }
    if (!kind && storyOf(items)) { history.replaceState(null, '', '#/story/'); await show(); return; }
    if (kind === 'story') { byId('crumbs').textContent = ''; await showStory(host, storyOf((await source.list()).items), mine); }
    else if (!(kind in sections)) { host.replaceChildren(); byId('crumbs').textContent = ''; await listSection(host); }
    else await showRecord(host, kind, id, mine);
  } catch (error) { if (mine === ticket) host.replaceChildren(errorCard(error)); }
  if (mine === ticket) document.documentElement.dataset.ready = 'yes';
}

// A folder with one run, and at most one plan and one prediction beside it, is the story of one training: all on one page.
function storyOf(items) {
  const of = (kind) => items.filter((item) => item.kind === kind), [runs, plans, predictions] = ['run', 'plan', 'prediction'].map(of);
  const isOne = runs.length === 1 && plans.length <= 1 && predictions.length <= 1 && items.length > 1 && items.length === runs.length + plans.length + predictions.length;
  return isOne ? [...runs, ...plans, ...predictions] : null;
}

async function showStory(host, items, mine) {
  if (!items) throw new Error('This folder holds more than one training.');
  const documents = [];
  for (const item of items) documents.push([item, await source.document(item.id)]);
  if (mine !== ticket) return;
  document.title = `${documents[0][1].title} - memfit`;
  host.replaceChildren();
  for (const [item, document_] of documents) {
    const part = element('div', 'story-part');
    host.append(part);
    if (item.kind !== 'run') { const link = element('a', '', `open this ${item.kind} alone`); link.href = addressOf(item.kind, item.id); part.append(element('p', 'story-head', { plan: 'Fitted', prediction: 'Predicted' }[item.kind]), link); }
    sections[item.kind](part, item.id, document_);
  }
}

const ENDED_PAUSES = 4;

async function showRecord(host, kind, id, mine) {
  byId('crumbs').textContent = id === '.' ? '' : id;
  if (source.isServed) host.replaceChildren(element('p', 'sentence soft', 'Reading …'));
  const document_ = await source.document(id);
  if (mine !== ticket) return;
  if (document_.kind !== kind) throw new Error(`This is a ${document_.kind}, not a ${kind}.`);
  document.title = `${document_.title} - memfit`;
  host.replaceChildren();
  const live = sections[kind](host, id, document_);
  if (live && source.isServed) keepFresh(live, id, mine);
}

// Asks now and then whether the record has grown: less often for one that took long to read, or that has ended or stopped (a study
// may be resumed), and not at all while nobody sees the page.
function keepFresh(live, id, mine) {
  let timer = 0;
  const look = async () => {
    if (mine !== ticket) return;
    if (!document.hidden) try {
      const next = await source.changed(id);
      if (mine !== ticket) return;
      if (next) { live.update(next); document.documentElement.dataset.updates = String(Number(document.documentElement.dataset.updates || 0) + 1); }
      byId('live').textContent = live.isLive() ? live.word?.() ?? 'live' : '';
    } catch (error) { byId('live').textContent = `not live: ${error.message}`; }
    timer = setTimeout(look, source.pause(id) * (live.isGrowing() ? 1 : ENDED_PAUSES));
  };
  timer = setTimeout(look, source.pause(id));
  onLeave(() => clearTimeout(timer));
}

function setTheme(name) { document.documentElement.dataset.theme = name; readShades(); }
function switchTheme() { setTheme(document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark'); redrawAll(); }
byId('theme').addEventListener('click', switchTheme);
byId('keys').addEventListener('click', () => byId('keys-dialog').showModal());
byId('skip').addEventListener('click', (event) => { event.preventDefault(); byId('main').focus(); });
const dark = window.matchMedia('(prefers-color-scheme: dark)');
dark.addEventListener('change', (event) => { setTheme(event.matches ? 'dark' : 'light'); redrawAll(); });
document.addEventListener('keydown', (event) => {
  if (event.target.matches('input, select, textarea') || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === 't') switchTheme();
  else if (event.key === 'g') location.hash = '#/list';
  else if (event.key === '?') byId('keys-dialog').showModal();
});
window.addEventListener('hashchange', () => { const { kind, id } = readAddress(); if (`${kind}/${id}` !== shownAt) show(); });
byId('home').href = '#/list';
document.addEventListener('dragover', (event) => { if (source.isServed) event.preventDefault(); });
document.addEventListener('drop', (event) => { if (!source.isServed) return; event.preventDefault(); if (event.dataTransfer.files[0]) openDropped(event.dataTransfer.files[0]); });
setTheme(dark.matches ? 'dark' : 'light');
show();
