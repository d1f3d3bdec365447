// A CUDA memory snapshot: peaks, the curve of its events, segments with their blocks, fragmentation, and other settings.
function snapshotSection(host, id, document_) {
  drawSnapshot(host, document_.title, document_.body);
  if (document_.body.replay || !source.isServed || document_.isDropped) return;
  const note = element('p', 'sentence soft', 'These are the segments at the end. The events are still being read …');
  host.prepend(note);
  source.later(id, 'whole').then((body) => { if (note.isConnected) { host.replaceChildren(); drawSnapshot(host, document_.title, body); } }, (error) => { note.textContent = `The events cannot be shown: ${error.message}`; });
}

function drawSnapshot(host, title, one) {
  const { replay } = one;
  host.append(element('h1', '', title), element('p', 'sentence', one.sentence));
  if (replay) {
    const part = card('Peaks', 'peaks');
    part.node.append(facts([...Object.entries(replay.peaks).map(([name, figure]) => [name, figureNode(figure)]), ['events', replay.num_events.toLocaleString('en')], ['settings', replay.settings ?? 'not recorded'], ['device', `${replay.device} (${replay.why_this_device})`], ['replayed', replay.agreement.reason || `${replay.agreement.num_same_place.toLocaleString('en')} of ${replay.agreement.num_allocations.toLocaleString('en')} placements reproduced`]]));
    host.append(part.node);
    eventsCard(host, replay);
  }
  segmentsCard(host, one);
  poolsCard(host, one);
  if (replay) {
    for (const failure of replay.failures) { const part = card('Out of memory', `failure-${failure.event}`); part.node.append(element('p', '', `Event ${failure.event.toLocaleString('en')}: ${bytesText(failure.requested_bytes)} were asked for${failure.line ? ` by ${failure.line}` : ''}, the driver had ${bytesText(failure.driver_free_bytes)} left.${failure.memory ? ` The allocator held ${bytesText(failure.memory.reserved_bytes)}, of which ${bytesText(failure.memory.free_bytes)} in ${failure.memory.num_free_blocks} free blocks, the largest ${bytesText(failure.memory.largest_free_bytes)}.` : ` ${failure.reason}`}`)); host.append(part.node); }
    const lines = card('Who held the peak', 'lines');
    lines.node.append(table(['line', '>bytes', '>blocks'], replay.top_lines.map((line) => [line.line, bytesText(line.num_bytes), line.num_blocks])), element('p', 'hint', replay.unknown_lines_bytes ? `${bytesText(replay.unknown_lines_bytes)} are from before the recording, or without a stack.` : ''));
    host.append(lines.node);
    if (replay.what_if.length) { const part = card('Under other settings (predicted)', 'what-if'); part.node.append(table(['PYTORCH_ALLOC_CONF', '>reserved', '>allocated'], replay.what_if.map((run) => [run.settings || '(default)', bytesText(run.peak_reserved_bytes), bytesText(run.peak_allocated_bytes)]))); host.append(part.node); }
    if (replay.notes && replay.notes.length) host.append(bullets(replay.notes));
  }
}

function eventsCard(host, replay) {
  const part = card('Allocated and reserved', 'events'), stage = element('div', 'chart'), { curve } = replay;
  part.node.append(stage, element('p', 'hint', 'After each event of the recording; blue: allocated, red: reserved by the allocator.'));
  host.append(part.node);
  const plot = curvePlot(stage, [{ name: 'reserved', x: curve.events, y: curve.reserved_bytes, color: () => colorOf('limit'), dash: [6, 3] }, { name: 'allocated', x: curve.events, y: curve.allocated_bytes, color: () => colorOf('job'), fill: () => `${colorOf('job')}22` }], { labelX: 'event', unitY: 'bytes', wholeX: true, stepped: true, rangeY: (_, low, high) => [0, high * 1.08 || 1] });
  saveTools(part.tools, 'events', () => plot.picture(), () => plot.numbers());
}

// Segments as rows of blocks, the largest first; each row is as wide as the largest segment.
function segmentsCard(host, one) {
  const part = card('Segments at the end of the recording', 'segments'), read = element('p', 'read'), canvas = element('canvas', 'segments');
  const segments = { bytes: columnOf(one.segments.num_bytes), first: columnOf(one.segments.first_block), pool: columnOf(one.segments.pool) }, blocks = { bytes: columnOf(one.blocks.num_bytes), state: columnOf(one.blocks.state), line: columnOf(one.blocks.line) };
  read.dataset.idle = 'The block under the mouse is written here.';
  part.node.append(canvas, read, element('p', 'hint', 'Each row is a segment; blue blocks are allocated, orange ones wait to be freed, empty ones are free: room that no larger request can use.'));
  host.append(part.node);
  const order = Array.from(segments.bytes.keys()).sort((a, b) => segments.bytes[b] - segments.bytes[a]), shown = order.slice(0, 60), row = 11;
  let width = 0, widest = 1;
  function draw() {
    width = Math.max(part.node.clientWidth - 34, 200);
    const scale = window.devicePixelRatio || 1, height = shown.length * row + 4;
    canvas.width = width * scale; canvas.height = height * scale; canvas.style.height = `${height}px`; canvas.style.width = `${width}px`;
    const pen = canvas.getContext('2d');
    pen.scale(scale, scale);
    widest = Math.max(...shown.map((each) => segments.bytes[each]), 1);
    const colors = { allocated: colorOf('job'), 'awaiting free': colorOf('backward'), free: colorOf('grid') };
    shown.forEach((segment, n) => {
      let x = 0;
      pen.fillStyle = colors.free; pen.fillRect(0, n * row, (width * segments.bytes[segment]) / widest, row - 2);
      for (let block = segments.first[segment]; block < (segment + 1 < segments.first.length ? segments.first[segment + 1] : blocks.bytes.length); block++) {
        const wide = (width * blocks.bytes[block]) / widest, state = one.blocks.state.labels[blocks.state[block]];
        if (state !== 'free') { pen.fillStyle = colors[state]; pen.fillRect(x, n * row, Math.max(wide - 0.4, 0.4), row - 2); }
        x += wide;
      }
    });
  }
  canvas.addEventListener('pointermove', (event) => {
    const box = canvas.getBoundingClientRect(), segment = shown[Math.floor((event.clientY - box.top) / row)];
    if (segment === undefined) return;
    let left = ((event.clientX - box.left) / width) * widest, block = segments.first[segment];
    const last = segment + 1 < segments.first.length ? segments.first[segment + 1] : blocks.bytes.length;
    while (block < last - 1 && left > blocks.bytes[block]) left -= blocks.bytes[block++];
    const line = one.blocks.line.labels[blocks.line[block]];
    read.textContent = `${bytesText(segments.bytes[segment])} segment (${one.segments.pool.labels[segments.pool[segment]]})  ·  block of ${bytesText(blocks.bytes[block])}, ${one.blocks.state.labels[blocks.state[block]]}${line ? `, ${line}` : ''}`;
  });
  draw();
  onRedraw(draw);
  const observer = new ResizeObserver(() => { if (Math.abs(part.node.clientWidth - 34 - width) > 3) draw(); });
  observer.observe(part.node);
  onLeave(() => observer.disconnect());
  if (order.length > shown.length) part.node.append(element('p', 'hint', `The ${shown.length} largest of ${order.length.toLocaleString('en')} segments are drawn.`));
  saveTools(part.tools, 'segments', () => onPaper([canvas], width, shown.length * row + 4), () => [['segment', 'segment (bytes)', 'pool', 'block (bytes)', 'state', 'line'], order.flatMap((segment) => { const rows = []; for (let block = segments.first[segment]; block < (segment + 1 < segments.first.length ? segments.first[segment + 1] : blocks.bytes.length); block++) rows.push([segment, segments.bytes[segment], one.segments.pool.labels[segments.pool[segment]], blocks.bytes[block], one.blocks.state.labels[blocks.state[block]], one.blocks.line.labels[blocks.line[block]]]); return rows; })]);
}

function poolsCard(host, one) {
  const part = card('Fragmentation', 'fragmentation');
  part.node.append(table(['pool', '>segments', '>reserved', '>allocated', '>free inside', '>largest free block'], one.pools.map((pool) => [pool.pool, pool.num_segments.toLocaleString('en'), bytesText(pool.reserved_bytes), bytesText(pool.allocated_bytes), bytesText(pool.free_bytes), bytesText(pool.largest_free_bytes)])));
  host.append(part.node);
}
