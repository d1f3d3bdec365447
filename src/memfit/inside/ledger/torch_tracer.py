"""Dispatch mode that logs tensor storages of a step: operator, module, phase, birth and death.

A dispatch mode sees every operator. Per operator it does as little as it can (about 10 us on top of it) and writes
a log; all thinking happens afterwards, in `live_set.py`. A birth is an output whose storage is not known yet, a death
is the call of a weak reference to that storage: torch keeps one Python object per storage, so both are exact (torch
2.13).

Modules come from global hooks that exist only while a step is traced. In a backward pass the autograd node at work
has the number it got when the forward pass made it, so noting the counter at every module's entry and exit is
enough to name its module later.
"""

import sys
import threading
import weakref

import torch
from torch.nn.modules import module as torch_module
from torch.utils._python_dispatch import TorchDispatchMode

_Tensor = torch.Tensor
_NO_DISPATCH = torch.Tensor.__torch_dispatch__  # pyright: ignore[reportAttributeAccessIssue]
_PRIM_DEVICE = torch.ops.prim.device.default
_graph_task_id = torch._C._current_graph_task_id
_current_node = torch._C._current_autograd_node
_next_node_number = torch._C._autograd._get_sequence_nr  # pyright: ignore[reportAttributeAccessIssue]
_stack_size = torch._C._len_torch_dispatch_stack
_stack_at = torch._C._get_dispatch_stack_at
_pop_stack = torch._C._pop_torch_dispatch_stack
_push_stack = torch._C._push_on_torch_dispatch_stack

_LARGE_BYTES = 256 * 1024
"""The process as a whole is looked at when a storage of at least this size was born: filling it took longer than
the look."""

MAX_BIRTHS = 65536
"""A step with more is traced only up to here: the log stays below about 15 MiB."""


def _overloads(*names):
    packets = [getattr(torch.ops.aten, name, None) for name in names]
    return frozenset(getattr(packet, overload) for packet in packets if packet for overload in packet.overloads())


_OUT_OF_PLACE_UNDER_A_MODE = _overloads("add", "scatter", "scatter_add", "index_put", "index_add")
"""In a backward pass autograd would write these into their input, were no dispatch mode active (torch 2.13)."""


class _StorageRef(weakref.ref):
    """A weak reference that knows whom it watches."""

    __slots__ = ("key", "number")


class StepTracer(TorchDispatchMode):
    """The log of one step; enter at its first forward pass, leave when it ends."""

    @classmethod
    def _should_skip_dynamo(cls):
        # Without this, torch 2.13 wraps __torch_dispatch__ in a function of its compiler: 200 us an operator, not 6.
        return False

    def __init__(self, look, max_births=MAX_BIRTHS):
        super().__init__()
        self.births = []
        """(bytes, operator or None, module or node number, phase, device or None for the host, number of the storage it
        may have replaced, what lies behind it when that is not the heap)."""
        self.log = []
        """(operator count, storage number) of a birth, (operator count, ~storage number) of a death."""
        self.boundaries = []
        """(next autograd node number, module) at every entry and exit of a module."""
        self.roots = {}
        """Modules called from outside of any other, in order."""
        self.num_operators = 0
        self.backward_starts = []
        """Operator counts after which a backward pass began."""
        self._last_task = -1
        self.phase_outside = "forward"
        """The phase of an operator that no autograd node asked for."""
        self.is_full = False
        self._max_births = max_births
        self._look = look
        self._look_at_bytes = sys.maxsize
        self.host_bytes = 0
        """Of the storages on the host that are alive."""
        self._alive = {}
        self._modules = []
        self._handles = []
        self._thread = threading.get_ident()

    # ---- from the beginning to the end -----------------------------------------------------------------------------

    def begin(self, root=None):
        """Start tracing; when the call of `root` has just begun, its entry is already past."""
        self._handles = [
            torch_module.register_module_forward_pre_hook(self._module_entered),
            torch_module.register_module_forward_hook(self._module_left, always_call=True),
        ]
        if root is not None:
            self._module_entered(root, ())
        self._look_at_bytes = _LARGE_BYTES
        self.__enter__()

    def leave(self):
        """Stop tracing, also from under modes that were entered later and are still on; False when this thread
        cannot."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if threading.get_ident() != self._thread:
            self.is_full = True  # modes belong to threads: here it can only fall silent
            return False
        above = []
        while _stack_size() and (top := _stack_at(_stack_size() - 1)) is not self:
            above.append(top)
            _pop_stack(None)
        if _stack_size():
            self.__exit__(None, None, None)
        for mode in reversed(above):
            _push_stack(mode)
        return True

    def forget(self):
        """Drop all references; no death is noted any more."""
        self._alive.clear()
        self._modules.clear()

    # ---- storages --------------------------------------------------------------------------------------------------

    def known(self, tensor):
        """The number of a tensor's storage, None when it was never seen or has none."""
        try:
            ref = self._alive.get(tensor.untyped_storage()._cdata)
        except (RuntimeError, NotImplementedError):
            return None
        return None if ref is None else ref.number

    def living(self):
        """(storage, its number) of everything that is alive now."""
        found = [(ref(), ref.number) for ref in list(self._alive.values())]
        return [(storage, number) for storage, number in found if storage is not None]

    def register(self, tensor, phase="setup"):
        """Make a storage known that exists already; its number, or None when it has none of its own."""
        try:
            storage = tensor.untyped_storage()
            ref = self._alive.get(storage._cdata)
        except (RuntimeError, NotImplementedError):
            return None
        return self._born(storage, None, None, phase, tensor, None) if ref is None else ref.number

    def _born(self, storage, operator, where, phase, tensor, replaced):
        number = len(self.births)
        if number >= self._max_births:
            self.is_full = True
            return None
        device = None if tensor.is_cpu else str(tensor.device)
        ref = _StorageRef(storage, self._died)
        ref.key = storage._cdata
        ref.number = number
        self._alive[ref.key] = ref
        backing = _backing(storage) if operator is None else ""
        num_bytes = storage.nbytes()
        if device is None:
            self.host_bytes += num_bytes
        self.births.append((num_bytes, operator, where, phase, device, replaced, backing))
        self.log.append((self.num_operators, number))
        if num_bytes >= self._look_at_bytes and operator is not None:  # an argument is noted before what became of it
            self._look(len(self.log))
        return number

    def _died(self, ref):
        if self._alive.get(ref.key) is ref:
            del self._alive[ref.key]
            birth = self.births[ref.number]
            if birth[4] is None:
                self.host_bytes -= birth[0]
            self.log.append((self.num_operators, ~ref.number))

    # ---- operators -------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is _PRIM_DEVICE:  # an exception raised while answering this one would end the whole program
            return func(*args)
        if types and not all(kind.__torch_dispatch__ is _NO_DISPATCH for kind in types):
            return NotImplemented  # a tensor subclass unwraps itself first; its inner operators come back here
        self.num_operators += 1  # before the operator: what dies while it runs died after the one before
        out = func(*args, **kwargs) if kwargs else func(*args)
        if not self.is_full:
            try:
                self._note(func, args, out)
            except Exception:
                self.is_full = True  # half a log is worth more than the user's program
        return out

    def _note(self, func, args, out):
        task = _graph_task_id()
        if task == -1:
            if self.phase_outside != "update":
                self._note_arguments(args)
        elif task != self._last_task:  # what a backward pass reads was seen before, but for what it begins with
            self._last_task = task
            self.backward_starts.append(self.num_operators - 1)
            self._note_arguments(args)
        if isinstance(out, _Tensor):
            self._note_output(func, args, out, task)
        elif isinstance(out, (tuple, list)):
            for tensor in out:
                if isinstance(tensor, _Tensor):
                    self._note_output(func, args, tensor, task)

    def _note_arguments(self, arguments):
        alive = self._alive
        for argument in arguments:
            if isinstance(argument, _Tensor):
                if argument.untyped_storage()._cdata not in alive:
                    self.register(argument, "data")
            elif isinstance(argument, (list, tuple)):
                self._note_arguments(argument)

    def _note_output(self, func, args, tensor, task):
        storage = tensor.untyped_storage()
        ref = self._alive.get(storage._cdata)
        if ref is None:
            self._note_birth(func, args, tensor, storage, task)
        elif storage.nbytes() != self.births[ref.number][0]:
            self._died(ref)  # resized in place: the old block is gone, a new one is there
            self._note_birth(func, args, tensor, storage, task)

    def _note_birth(self, func, args, out, storage, task):
        modules = self._modules
        if task == -1:
            self._born(storage, func, modules[-1] if modules else None, self.phase_outside, out, None)
        elif modules:
            self._born(storage, func, modules[-1], "recompute", out, None)
        else:
            node = _current_node()
            where = None if node is None else node._sequence_nr()
            replaced = None
            if func in _OUT_OF_PLACE_UNDER_A_MODE:
                replaced = self._replaceable(args[0])
            self._born(storage, func, where, "backward", out, replaced)

    def _replaceable(self, target):
        """The storage autograd would write into: only one that no view keeps a second hold on."""
        return None if not isinstance(target, _Tensor) or target._is_view() else self.known(target)

    # ---- modules ---------------------------------------------------------------------------------------------------

    def _module_entered(self, module, _inputs):
        modules = self._modules
        if not modules:
            self.roots[id(module)] = module
        modules.append(module)
        if threading.get_ident() == self._thread:
            self.boundaries.append((_next_node_number(), module))

    def _module_left(self, module, _inputs, _output):
        modules = self._modules
        if module in modules:
            while modules.pop() is not module:
                pass  # left by exceptions before
        if threading.get_ident() == self._thread:
            self.boundaries.append((_next_node_number(), modules[-1] if modules else None))


def _backing(storage):
    """'shared' or 'file' for a storage on the host that is not in the heap, else nothing."""
    if storage.device.type != "cpu":
        return ""
    if storage.is_shared():
        return "shared"
    return "file" if getattr(storage, "filename", None) else ""


def is_compiled(module):
    """Whether the inside of this module runs as compiled code, which no dispatch mode sees."""
    frame = sys.modules.get("torch._dynamo.eval_frame")
    wrapped = frame is not None and isinstance(module, frame.OptimizedModule)
    return wrapped or any(m._compiled_call_impl is not None for m in module.modules())
