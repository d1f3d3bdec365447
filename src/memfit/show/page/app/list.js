// The list of a folder, with links to its records, and a place to drop a snapshot on.
const KIND_WORDS = { run: 'Runs', study: 'Studies', prediction: 'Predictions', plan: 'Plans', pipeline: 'Pipelines', grid: 'Grids', snapshot: 'Snapshots', unreadable: 'Not readable' };

async function listSection(host) {
  const { items, is_whole: isWhole, title, left_out: leftOut } = await source.list();
  host.append(element('h1', '', title || 'Records'));
  if (!items.length) host.append(element('p', 'sentence', 'There is no run, study, prediction, plan, pipeline, grid or snapshot below this folder yet.'));
  for (const kind of [...Object.keys(KIND_WORDS), ...new Set(items.map((item) => item.kind).filter((each) => !(each in KIND_WORDS)))]) {
    const own = items.filter((item) => item.kind === kind);
    if (!own.length) continue;
    const part = card(`${KIND_WORDS[kind] || kind} (${own.length})`, `list-${kind}`);
    part.node.append(table(['record', 'changed'], own.map((item) => {
      const link = element('a', '', item.id === '.' ? item.title : item.title === item.id ? item.id : `${item.title}  ·  ${item.id}`);
      if (kind in sections) link.href = addressOf(kind, item.id);
      else if (item.facts && item.facts.length) link.title = item.facts.join('; ');
      return [link, item.changed_at ? new Date(item.changed_at * 1000).toLocaleString() : ''];
    })));
    host.append(part.node);
  }
  if (leftOut) host.append(element('p', 'hint left-out', `${leftOut.toLocaleString('en')} older records of the folder are not in this file; \`memfit serve\` shows all of them.`));
  if (!isWhole) host.append(element('p', 'hint', 'The folder holds more than is looked through; serve a folder further down to see the rest.'));
  if (source.isServed) host.append(dropCard());
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
  host.replaceChildren(element('p', 'sentence', `Reading ${file.name}, ${bytesText(file.size)} …`));
  try {
    const document_ = await source.snapshot(file);
    host.replaceChildren();
    snapshotSection(host, file.name, { ...document_, title: file.name, isDropped: true });
  } catch (error) { host.replaceChildren(errorCard(error)); }
  document.documentElement.dataset.ready = 'yes';
}
