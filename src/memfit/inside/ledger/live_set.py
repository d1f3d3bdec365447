"""Peak of the live tensors in the log of a traced step, and which tensors were alive there.

Pure: numbers and names in, plain dictionaries out. Two corrections are made to what the log says:
  - storages that existed before the step but were first seen in the middle of it are moved to its beginning;
  - a dispatch mode makes autograd accumulate gradients into a new storage where it would otherwise have written into
    the old one. When the old one dies before the next operator, the new one takes over its bytes.
"""

from collections import namedtuple

Storage = namedtuple("Storage", "num_bytes category module phase operator device replaced backing existed")
"""One storage; `existed` says that it was there before the step."""

Replayed = namedtuple("Replayed", "peak_bytes peak_index alive")
"""The peak of one device: its bytes, the index of its event, and the numbers of the storages then alive."""


def order_log(log, storages):
    """The log with storages that existed before in front, and takeovers instead of copies: [(count, number,
    is_birth)]."""
    existing = [n for n in range(len(storages)) if storages[n].existed]
    events = [(0, number, True) for number in existing]
    early = set(existing)
    taken = _takeovers(log, storages)
    for count, signed in log:
        number = signed if signed >= 0 else ~signed
        if signed >= 0 and number not in early:
            events.extend([(count, taken[number], False)] if number in taken else [])
            events.append((count, number, True))
        elif signed < 0 and number not in taken.values():
            events.append((count, number, False))
    return events


def _takeovers(log, storages):
    """New storage: old storage, for accumulations that would have happened in place."""
    born = {}
    taken = {}
    for count, signed in log:
        if signed >= 0:
            old = storages[signed].replaced
            if old is not None and storages[old].num_bytes == storages[signed].num_bytes:
                born[(count, old)] = signed
        elif (count, ~signed) in born and born[(count, ~signed)] not in taken:
            taken[born[(count, ~signed)]] = ~signed
    return taken


def find_peak(events, storages, device):
    """Walk the events and remember the highest point of one device."""
    live_bytes, peak_bytes, peak_index = 0, 0, -1
    for index, (_, number, is_birth) in enumerate(events):
        storage = storages[number]
        if storage.device != device:
            continue
        live_bytes += storage.num_bytes if is_birth else -storage.num_bytes
        if live_bytes > peak_bytes:
            peak_bytes, peak_index = live_bytes, index
    return Replayed(peak_bytes, peak_index, alive_after(events, peak_index, storages, device))


def alive_after(events, index, storages, device):
    """Numbers of the storages of a device that are alive after the event at this index."""
    alive = {}
    for _, number, is_birth in events[: index + 1]:
        if is_birth:
            alive[number] = True
        else:
            alive.pop(number, None)
    return [number for number in alive if storages[number].device == device]


def phase_at(events, index, storages):
    """The phase in which the event at this index happened; births by an operator tell."""
    for _, number, is_birth in reversed(events[: index + 1]):
        if is_birth and storages[number].operator:
            return storages[number].phase
    return "data"


def shares(numbers, storages, untouched=None):
    """The bytes of these storages by category, module and birth phase, the largest first; `untouched` tells how many
    bytes of a storage take no memory."""
    sums = {}
    for number in numbers:
        storage = storages[number]
        row = sums.setdefault((storage.category, storage.module, storage.phase, storage.backing), [0, 0, 0])
        row[0] += storage.num_bytes
        row[1] += 1
        row[2] += untouched.get(number, 0) if untouched else 0
    rows = [
        {
            "category": category, "module": module, "phase": phase, "backing": backing,
            "num_bytes": num_bytes, "num_tensors": num_tensors, "untouched_bytes": untouched_bytes,
        }
        for (category, module, phase, backing), (num_bytes, num_tensors, untouched_bytes) in sums.items()
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (-row["num_bytes"], row["category"], row["module"]))


def timeline(events, storages, step):
    """Every storage from its first to its last event, and where the phases begin."""
    spans, open_spans, phases = [], {}, []
    for index, (_, number, is_birth) in enumerate(events):
        storage = storages[number]
        if not is_birth:
            if number in open_spans:
                open_spans.pop(number)["end"] = index
            continue
        span = open_spans[number] = _span(index, storage)
        spans.append(span)
        if storage.operator and (not phases or phases[-1]["phase"] != storage.phase):
            phases.append({"start": index, "step": step, "phase": storage.phase})
    return {"spans": spans, "num_events": len(events), "phases": phases}


def _span(index, storage):
    span = {
        "start": index, "end": None, "num_bytes": storage.num_bytes, "category": storage.category,
        "phase": storage.phase, "device": storage.device,
    }  # fmt: skip
    if storage.module:
        span["module"] = storage.module
    if storage.operator:
        span["operator"] = storage.operator
    return span
