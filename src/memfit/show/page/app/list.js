// The list of a folder, with links to its records, and a place to drop a snapshot on.
const KIND_WORDS = { run: 'Runs', study: 'Studies', prediction: 'Predictions', plan: 'Plans', pipeline: 'Pipelines', grid: 'Grids', snapshot: 'Snapshots', unreadable: 'Not readable' };

async function listSection(host) {
  const { items, is_whole: isWhole, title, left_out: leftOut } = await source.list(), { kind: asked, id: dropped } = readAddress();
  host.append(element('h1', '', title || 'Records'));
  if (asked === 'dropped') host.append(element('p', 'sentence', `${dropped} was dropped on this page and is not kept; drop it again, or name it: memfit serve ${dropped}`));
  if (!items.length) host.append(element('p', 'sentence', 'There is no run, study, prediction, plan, pipeline, grid or snapshot below this folder yet. `memfit measure -- python train.py` in it writes a run.'));
  const box = element('div');
  if (items.length > 12) host.append(listFilter((words) => fillList(box, items, words)));
  host.append(box);
  fillList(box, items, currentState().find || '');
  if (leftOut) host.append(element('p', 'hint left-out', `${leftOut.toLocaleString('en')} older records of the folder are not in this file; \`memfit serve\` shows all of them.`));
  if (!isWhole) host.append(element('p', 'hint', 'The folder holds more than is looked through; serve a folder further down to see the rest.'));
  if (source.isServed) host.append(dropCard());
}

// What is typed is in the address, so that a list can be sent as well.
function listFilter(change) {
  const input = element('input', 'list-filter');
  input.type = 'search';
  input.placeholder = 'words that the name or command has to contain';
  input.setAttribute('aria-label', 'Find records');
  input.value = currentState().find || '';
  input.addEventListener('input', () => { keepState({ find: input.value }); change(input.value); });
  return input;
}

const MOST_LISTED = 500;

function fillList(host, items, find) {
  const words = find.toLowerCase().split(/\s+/).filter(Boolean), passing = items.filter((item) => words.every((word) => `${item.id} ${item.title}`.toLowerCase().includes(word)));
  host.replaceChildren();
  if (items.length && !passing.length) host.append(element('p', 'soft', 'No record has all of these words.'));
  for (const kind of [...Object.keys(KIND_WORDS), ...new Set(passing.map((item) => item.kind).filter((each) => !(each in KIND_WORDS)))]) {
    const own = passing.filter((item) => item.kind === kind);
    if (!own.length) continue;
    const part = card(`${KIND_WORDS[kind] || kind} (${own.length.toLocaleString('en')})`, `list-${kind}`), hasTitles = own.some((item) => item.title && item.title !== item.id), hasFacts = own.some((item) => item.facts && item.facts.length);
    part.node.append(table(['record', ...(hasTitles ? ['~what'] : []), ...(hasFacts ? ['why'] : ['changed'])], own.slice(0, MOST_LISTED).map((item) => {
      const link = element('a', '', item.id === '.' ? item.title : item.id);
      if (kind in sections) link.href = addressOf(kind, item.id);
      return [link, ...(hasTitles ? [item.title === item.id || item.id === '.' ? '' : item.title] : []), hasFacts ? (item.facts || []).join('; ') : item.changed_at ? new Date(item.changed_at * 1000).toLocaleString() : ''];
    }), 'list-table stacked'));
    if (own.length > MOST_LISTED) part.node.append(element('p', 'hint', `The newest ${MOST_LISTED} are shown; type a word above to find others.`));
    host.append(part.node);
  }
}

function dropCard() {
  const part = card('A CUDA memory snapshot', 'drop'), input = element('input');
  input.type = 'file';
  input.id = 'snapshot-file';
  const label = element('label', 'drop', 'Drop a file of torch.cuda.memory._dump_snapshot here, or choose one: ');
  label.append(input);
  part.node.append(label, element('p', 'hint', 'It is read on this machine, by a reader that runs nothing in it.'));
  input.addEventListener('change', () => { if (input.files[0]) openDropped(input.files[0]); });
  return part.node;
}

async function openDropped(file) {
  const host = byId('main');
  leave();
  // An address of its own, so that the way back to the list leads somewhere; the file itself stays with its owner.
  history.pushState(null, '', addressOf('dropped', file.name));
  shownAt = `dropped/${file.name}`;
  byId('crumbs').textContent = file.name;
  host.replaceChildren(element('p', 'sentence', `Reading ${file.name}, ${bytesText(file.size)} …`));
  try {
    const document_ = await source.snapshot(file);
    host.replaceChildren();
    snapshotSection(host, file.name, { ...document_, title: file.name, isDropped: true });
  } catch (error) { host.replaceChildren(errorCard(error)); }
  document.documentElement.dataset.ready = 'yes';
}
