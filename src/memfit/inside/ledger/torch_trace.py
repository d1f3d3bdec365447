"""Trace of one step: which storage was what, and from when to when it was alive.

Categories are decided when the step is over: a storage found in `p.grad` when the update begins was a gradient
since its birth, one that lives into the backward pass was an activation, one that does not was a temporary.
"""

import bisect
from collections import namedtuple

from ..resident import read_parts
from . import live_set
from .heaps import Heaps, untouched_bytes, untouched_heap_bytes
from .torch_names import name_modules, optimized_parameters, owned_tensors, state_tensors
from .torch_tracer import MAX_BIRTHS, StepTracer

HOST = "cpu"
_SAME_SHARE = 1 / 256
"""Between two looks that differ by less, the one with more in tensors is the better peak: the heap keeps its pages
while tensors come and go inside of it."""
_WALK_SHARE = 0.01
"""The pages of the heap are counted again when the process or its heap has changed by this share of the process."""
_LARGE_BYTES = 1024 * 1024
"""Storages of this size may have been made without being written."""


_Look = namedtuple("_Look", "index anonymous_bytes shared_bytes tensor_bytes heaps untouched_heap_bytes")
"""The process as a whole after the event of the log at `index`."""


class HeapWalks:
    """The pages of the heap that are not in memory, counted again when the process or its heap has changed."""

    def __init__(self):
        self._at_bytes = (0, 0)
        """The resident size, and that of the heap, when they were counted last."""
        self._untouched_bytes = None

    def untouched(self, resident_bytes, heaps):
        """Bytes of the heap that take no memory; None when unknown."""
        heap_bytes = (heaps.malloc_used_bytes or 0) + (heaps.malloc_free_bytes or 0)
        resident_before_bytes, heap_before_bytes = self._at_bytes
        changed_bytes = max(abs(resident_bytes - resident_before_bytes), abs(heap_bytes - heap_before_bytes))
        if changed_bytes > _WALK_SHARE * resident_bytes:
            self._at_bytes, self._untouched_bytes = (resident_bytes, heap_bytes), untouched_heap_bytes()
        return self._untouched_bytes


class StepTrace:
    """One traced step from its first forward pass to the end of its update."""

    def __init__(self, step, optimizers, read_resident=None, max_births=MAX_BIRTHS, *, walks=None):
        self.step = step
        self.tracer = StepTracer(self._look, max_births)
        self.update_was_traced = False
        self._optimizers = optimizers
        self._gradients = []
        """(storage number, identity of the parameter)."""
        self._states = {}
        self._is_open = False
        self._update_start = None
        self._template = None
        self._read_resident = read_resident
        self._moment = None
        self._largest_bytes = 0
        self._walks = walks or HeapWalks()
        self._untouched = {}

    def open(self, root=None):
        """Make known what is there, then watch; `root` is the module whose call has just begun, if there is one."""
        tracer, roots = self.tracer, [] if root is None else [root]
        for parameter in optimized_parameters(self._optimizers):
            tracer.register(parameter)
        for tensor, _, _ in owned_tensors(roots, {}):
            tracer.register(tensor)
        for _, tensor in state_tensors(self._optimizers):
            tracer.register(tensor)
        self._note_gradients(roots)
        self._is_open = True
        tracer.begin(root)

    def _note_gradients(self, roots):
        parameters = {id(p): p for p in optimized_parameters(self._optimizers)}
        parameters.update((id(t), t) for t, category, _ in owned_tensors(roots, {}) if category == "parameter")
        for parameter in parameters.values():
            if parameter.grad is not None:
                number = self.tracer.register(parameter.grad)
                if number is not None:
                    self._gradients.append((number, id(parameter)))

    def update_begins(self, optimizer, template):
        """Gradients are complete; go on watching only when this update is not known yet."""
        if optimizer not in self._optimizers:
            self._optimizers.append(optimizer)
        self._note_gradients(list(self.tracer.roots.values()))
        self._update_start = len(self.tracer.log)
        if template is None or template[0] != len(self._gradients):
            self.tracer.phase_outside = "update"
            self.update_was_traced = True
            return
        self._template = template[1]
        self._look(len(self.tracer.log))
        self._stop()

    def close(self):
        """The step is over: nothing that happens from here on belongs to it."""
        self._look(len(self.tracer.log))
        for parameter, tensor in state_tensors(self._optimizers):
            number = self.tracer.known(tensor)
            if number is not None:
                self._states[number] = ("optimizer state", id(parameter))
        self._stop()

    def _stop(self):
        """Leave the tracer; in another thread than the one that entered it, it only falls silent."""
        if self._is_open:
            self._is_open = not self.tracer.leave()

    def _look(self, index):
        """Remember what the process as a whole looks like at this event of the log, when it was never larger."""
        if self._read_resident is None:
            return
        anonymous_bytes, shared_bytes = self._read_resident()
        resident_bytes, best = anonymous_bytes + shared_bytes, self._moment
        self._largest_bytes = max(self._largest_bytes, resident_bytes)
        same_bytes = self._largest_bytes * _SAME_SHARE
        if resident_bytes < self._largest_bytes - same_bytes:
            return
        tensor_bytes = self.tracer.host_bytes
        if best is not None and tensor_bytes < best.tensor_bytes and resident_bytes <= self.seen_bytes + same_bytes:
            return
        heaps = Heaps(python=False)
        untouched = self._walks.untouched(resident_bytes, heaps)
        self._moment = _Look(index, anonymous_bytes, shared_bytes, tensor_bytes, heaps, untouched)

    def note_untouched(self):
        """Find the pages of large storages that were never written; of those that are gone, all were."""
        for storage, number in self.tracer.living():
            if storage.device.type == HOST and storage.nbytes() >= _LARGE_BYTES:
                num_bytes = untouched_bytes(storage.data_ptr(), storage.nbytes())
                if num_bytes:
                    self._untouched[number] = num_bytes

    @property
    def untouched(self):
        """Storage number: bytes of it that take no memory."""
        return self._untouched

    def abandon(self):
        """Exit the mode and drop everything; False if the entering thread must still exit the mode."""
        try:
            self._stop()
        finally:
            self.tracer.forget()
        return not self._is_open

    def shape(self):
        """Everything that tells this step from another: two steps of the same shape have the same ledger of tensors."""
        sizes = [birth[0] for birth in self.tracer.births]
        return self.tracer.log[: self._update_start], sizes, len(self._gradients)

    # ---- thinking --------------------------------------------------------------------------------------------------

    def understand(self):
        """Every storage with its name and category, and the events in order."""
        tracer = self.tracer
        roots = list(tracer.roots.values())
        names = name_modules(roots)
        categories = self._known_categories(roots, names)
        module_of_node = _NodeNames(tracer.boundaries, names)
        died_at = {~signed: count for count, signed in tracer.log if signed < 0}
        born_at = {signed: count for count, signed in tracer.log if signed >= 0}
        storages = [
            self._storage(birth, categories.get(number), names, module_of_node, born_at[number], died_at.get(number))
            for number, birth in enumerate(tracer.births)
        ]
        log = tracer.log
        if self._template is not None:
            log = log[: self._update_start]
            last = tracer.num_operators
            for storage, is_birth, index in self._template:
                if is_birth:
                    storages.append(storage)
                log.append((last, len(tracer.births) + index if is_birth else ~(len(tracer.births) + index)))
        return storages, live_set.order_log(log, storages)

    def _known_categories(self, roots, names):
        """Storage number: (category, path of the module) for what is known by identity."""
        tracer, owners, paths = self.tracer, dict(self._states), {}
        for tensor, category, path in owned_tensors(roots, names):
            paths.setdefault(id(tensor), path)
            owners.setdefault(tracer.known(tensor), (category, id(tensor)))
        for parameter in optimized_parameters(self._optimizers):
            owners.setdefault(tracer.known(parameter), ("parameter", id(parameter)))
        for number, owner in self._gradients:
            owners.setdefault(number, ("gradient", owner))
        return {number: (category, paths.get(owner, "")) for number, (category, owner) in owners.items()}

    def _storage(self, birth, known, names, module_of_node, born_at, died_at):
        num_bytes, operator, where, phase, device, replaced, backing = birth
        if known is not None:
            category, module = known
        else:
            category = self._category(operator, phase, born_at, died_at)
            module = module_of_node(where) if isinstance(where, int) else names.get(id(where), "")
        starts = self.tracer.backward_starts
        existed = operator is None and (category != "input" or not starts or born_at <= starts[0])
        if operator is None and category == "gradient":
            phase = "backward"
        elif operator is None and category == "optimizer state":
            phase = "update"
        return live_set.Storage(
            num_bytes, category, module, phase, str(operator) if operator else "", device or HOST, replaced,
            backing, existed
        )  # fmt: skip

    def _category(self, operator, phase, born_at, died_at):
        if operator is None:
            return "input"
        if phase == "recompute":
            return "activation"
        if phase != "forward":
            return "temporary"
        starts = self.tracer.backward_starts
        following = bisect.bisect_right(starts, born_at - 1)
        is_needed = following < len(starts) and (died_at is None or died_at > starts[following])
        return "activation" if is_needed else "temporary"

    def update_is_steady(self, storages):
        """Whether everything the update made is gone at its end: the first update of an optimizer leaves its state
        behind."""
        born = {n for _, n in self.tracer.log[self._update_start :] if n >= 0}
        died = {~n for _, n in self.tracer.log[self._update_start :] if n < 0}
        return not any(storages[n].category == "optimizer state" for n in born - died)

    def update_template(self, storages):
        """The update's own storages, to be laid behind another step with as many gradients: (how many these are, rows
        of storage, is it a birth, number within the template)."""
        log = self.tracer.log[self._update_start :]
        died = {~n for _, n in log if n < 0}
        numbers = {}
        template = []
        for _, signed in log:
            if signed >= 0 and signed in died:
                numbers[signed] = len(numbers)
                template.append((storages[signed], True, numbers[signed]))
            elif signed < 0 and ~signed in numbers:
                template.append((storages[~signed], False, numbers[~signed]))
        return len(self._gradients), template

    @property
    def seen_bytes(self):
        """The size of the process at the look that is kept; 0 without one."""
        return self._moment.anonymous_bytes + self._moment.shared_bytes if self._moment else 0

    def moment(self, storages):
        """The look at the largest process, with the tensors of the host that were alive then."""
        if self._moment is None:
            return None
        look = self._moment
        events = live_set.order_log(self.tracer.log[: look.index], storages)
        alive = live_set.alive_after(events, len(events) - 1, storages, HOST)
        shmem_bytes = min(read_parts()["shmem_bytes"], look.shared_bytes)
        facts = {
            "phase": live_set.phase_at(events, len(events) - 1, storages),
            "tensors": live_set.shares(alive, storages, self._untouched),
            "anonymous_bytes": look.anonymous_bytes,
            "file_bytes": look.shared_bytes - shmem_bytes,
            "shmem_bytes": shmem_bytes,
            **look.heaps.facts(),
        }
        if look.untouched_heap_bytes is not None:
            facts["untouched_heap_bytes"] = look.untouched_heap_bytes
        return facts


class _NodeNames:
    """The module in whose forward pass an autograd node was made, by the node's number."""

    def __init__(self, boundaries, names):
        self._numbers = [number for number, _ in boundaries]
        self._paths = [names.get(id(module), "") for _, module in boundaries]

    def __call__(self, number):
        index = bisect.bisect_right(self._numbers, number) - 1
        return self._paths[index] if index >= 0 else ""
