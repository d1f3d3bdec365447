"""Hooks that find forward, backward and optimizer update of a training loop that was not changed.

torch tells: optimizers call global hooks around `step`, every backward pass goes through `torch.autograd.backward`,
and every module call asks for global hooks. The last would cost time at each call, so the forward hook takes itself
away when it has seen a forward pass begin and comes back when the step ends: one call a step. A pass without
gradients is an evaluation; then the hook comes back when that very module returns. Backward passes are let alone in
light steps, which do not tell phases apart. Where steps are so short that they are only counted, even one call of the
forward hook is too dear: it stays out until something announces an evaluation, `Module.eval` or a context without
gradients.

The forward hook always has the same key and the same function, because compiled code is guarded on both (torch
2.13), and it is hidden from `_has_any_global_hook`, by which a compiled module decides whether to warn its user.
"""

import functools
import weakref
from threading import get_ident as _get_ident
from time import monotonic_ns

import torch
import torch.optim.optimizer as torch_optimizer
from torch.nn.modules import module as torch_module

_is_compiling = torch.compiler.is_compiling
_is_grad_enabled = torch.is_grad_enabled
_graph_task_id = torch._C._current_graph_task_id


class TorchHooks:
    """Marks every step of this process; `install` and `remove` leave torch as it was."""

    def __init__(self, marks, ledger=None):
        self._marks = marks
        self._numbers = weakref.WeakKeyDictionary()
        self._stepping = None
        """While an update runs: (optimizer, its number as text, its thread, passes until then, has it a closure)."""
        self._may_be_unheard = False
        """Whether an update may be running that began while steps were only counted: its closure runs this pass."""
        self._in_backward = None
        """(optimizer, its number as text) of the first that stepped inside of the running backward pass."""
        self._has_updates_in_backward = False
        """Then the end of every backward pass is watched, in light steps as well."""
        self._num_passes = 0
        self._forward_hook = self._forward
        self._forward_hooks = {}
        self._forward_key = -1
        self._last_model = _nothing
        self._last_optimizer = (_nothing, b"")
        self._backward = self._plain_backward = torch.autograd.backward
        self._before_key, self._before_hooks = -1, {}
        self._after_key, self._after_hooks = -1, {}
        self._is_counting = False
        """Whether steps are only counted: then the begin of an update and of a forward pass call nothing."""
        self._handles = []
        self._undo = []
        self._tracing = None
        if ledger is not None:
            from .ledger.torch_traced_steps import TorchLedger

            self._tracing = TorchLedger(ledger)
            marks.end_groups()  # a ledger chooses the steps it traces one by one

    def install(self):
        """Put the hooks in."""
        before = torch_optimizer.register_optimizer_step_pre_hook(self._before_update)
        self._before_key, self._before_hooks = before.id, before.hooks_dict_ref() or {}
        self._is_counting = False
        after = torch_optimizer.register_optimizer_step_post_hook(self._after_update)
        self._after_key, self._after_hooks = after.id, after.hooks_dict_ref() or {}
        self._handles = [before, after]
        self._install_forward()
        self._plain_backward = torch.autograd.backward
        self._backward = self._marked_backward(torch.autograd.backward)
        self._replace(torch.autograd, "backward", self._backward)
        self._replace(torch_module.Module, "eval", self._announcing(torch_module.Module.eval))
        for context in (torch.no_grad, torch.inference_mode):
            self._replace(context, "__enter__", self._announcing(context.__enter__))
            self._replace(context, "__exit__", self._calling_off(context.__exit__))
        self._replace(torch_module, "_has_any_global_hook", self._others_have_hooks(torch_module._has_any_global_hook))

    def _install_forward(self):
        """Register once for a key of our own; from then on the hook goes out of and into the dictionary by itself."""
        handle = torch_module.register_module_forward_pre_hook(self._forward)
        self._forward_key = handle.id
        self._forward_hooks = handle.hooks_dict_ref() or {}
        self._forward_hooks[self._forward_key] = self._forward_hook

    def remove(self):
        """Take the hooks out again."""
        if self._tracing is not None:
            self._tracing.abandon()
        for handle in self._handles:
            handle.remove()
        self._disarm()
        for owner, name, original, ours in self._undo:
            if getattr(owner, name) is ours:
                setattr(owner, name, original)
        self._handles, self._undo = [], []

    def forked(self):
        """In a forked child: no step is running here."""
        self._stepping = self._in_backward = None
        self._may_be_unheard = False
        self._count(False)
        if self._tracing is not None:
            self._tracing.forked()
        self._arm()
        self._watch_backward()

    def _replace(self, owner, name, ours):
        self._undo.append((owner, name, getattr(owner, name), ours))
        setattr(owner, name, ours)

    # ---- forward ---------------------------------------------------------------------------------------------------

    def _arm(self):
        if self._handles:
            self._forward_hooks[self._forward_key] = self._forward_hook

    def _disarm(self):
        self._forward_hooks.pop(self._forward_key, None)

    def _forward(self, module, inputs):
        """A module is called while the hook is in: is it a model, and does it train?"""
        if _is_compiling() or _graph_task_id() != -1 or not (self._last_model() is module or self._is_model(module)):
            return
        self._forward_hooks.pop(self._forward_key, None)
        if not _is_grad_enabled():
            self._evaluation(module, inputs)
            return
        self._num_passes += 1
        if self._tracing is not None and self._tracing.forward_begins(module, inputs):
            self._marks.is_light = False
        if not self._marks.is_light:
            self._may_be_unheard = self._is_counting
            self._count(False)
            self._watch_backward()
            self._marks.phase_begins(b"F")
            if self._tracing is not None:
                self._tracing.forward_marked()

    def _is_model(self, module):
        """Whether it has parameters: transforms and losses are modules too. The last one seen is remembered."""
        if next(module.parameters(), None) is None:
            return False
        self._last_model = weakref.ref(module)
        return True

    def _evaluation(self, module, inputs):
        """One mark for the whole evaluation, however many batches it has; a traced batch gets its own."""
        tracing = self._tracing
        is_traced = tracing is not None and tracing.evaluation_begins(module, inputs)
        if is_traced or self._marks.phase != "evaluation":
            self._marks.mark(b"V")

        def returned(*_):
            handle.remove()
            if tracing is not None:
                tracing.evaluation_ended()
            self._arm()

        handle = module.register_forward_hook(returned, always_call=True)

    def _announcing(self, original):
        """An evaluation may follow."""

        @functools.wraps(original)
        def announced(itself):
            if self._marks.is_grouping:
                self._arm()
            return original(itself)

        return announced

    def _calling_off(self, original):
        """No evaluation followed, if the next step is still to be counted."""

        @functools.wraps(original)
        def called_off(*args):
            if self._marks.is_grouping:
                self._disarm()
            return original(*args)

        return called_off

    def _others_have_hooks(self, original):
        @functools.wraps(original)
        def has_any_global_hook():
            if self._forward_key not in self._forward_hooks:
                return original()
            self._disarm()
            try:
                return original()
            finally:
                self._arm()

        return has_any_global_hook

    # ---- backward --------------------------------------------------------------------------------------------------

    def _watch_backward(self):
        """Put the marking backward in, or take it out for a light step; never over somebody else's."""
        is_plain = self._marks.is_light and not self._has_updates_in_backward
        now, wanted = torch.autograd.backward, self._plain_backward if is_plain else self._backward
        if now is not wanted and (now is self._backward or now is self._plain_backward):
            torch.autograd.backward = wanted

    def _marked_backward(self, original):
        @functools.wraps(original)
        def backward(*args, **kwargs):
            if _is_compiling() or _graph_task_id() != -1:
                return original(*args, **kwargs)
            self._num_passes += 1
            self._marks.phase_begins(b"B")
            if self._tracing is not None:
                self._tracing.backward_begins()
            try:
                result = original(*args, **kwargs)
            finally:
                if self._tracing is not None:
                    self._tracing.backward_ended()
            self._update_goes_on()
            self._end_step_of_backward()
            return result

        return backward

    def _update_goes_on(self):
        """A backward pass ended in a closure that an optimizer called: its update follows, or another closure."""
        stepping = self._stepping
        if stepping is None or not stepping[4] or stepping[2] != _get_ident():
            return
        self._marks.phase_begins(b"U", stepping[1])
        if self._tracing is not None:
            self._tracing.update_goes_on(stepping[0])
        self._arm()

    # ---- update ----------------------------------------------------------------------------------------------------

    def _before_update(self, optimizer, args, kwargs):
        """An update begins, unless an optimizer that wraps others is at work and this is one of them."""
        stepping = self._stepping
        if _is_compiling():
            return
        # light steps only ask where full ones, which come first, have seen an update inside of a backward pass
        asks = self._has_updates_in_backward or not self._marks.is_light
        if asks and stepping is None and _graph_task_id() != -1:
            self._update_in_backward(optimizer)
            return
        if stepping is not None and self._is_nested(optimizer, stepping):
            self._end_groups()
            return
        self._may_be_unheard = False
        known, number = self._last_optimizer
        if known() is not optimizer:
            number = self._number(optimizer)
        self._stepping = (optimizer, number, _get_ident(), self._num_passes, len(args) > 1 or bool(kwargs))
        if not self._marks.is_light:
            self._marks.phase_begins(b"U", number)
        if self._tracing is not None:
            self._tracing.update_begins(optimizer)

    def _end_groups(self):
        """Updates inside of others, or of a backward pass: they cannot be counted blindly, since not each is a step."""
        if self._marks.is_grouping:
            self._arm()
        self._marks.end_groups()

    def _is_nested(self, optimizer, stepping):
        """Whether another update is running around this one; one left by an exception is over when a new pass began."""
        outer, _, thread, num_passes, _ = stepping
        return outer is not optimizer and thread == _get_ident() and num_passes == self._num_passes

    def _update_in_backward(self, optimizer):
        """Optimizers that step inside of a backward pass (one for each layer) make one step, which ends with it."""
        if self._in_backward is None:
            self._in_backward = (optimizer, self._number(optimizer))
        if not self._has_updates_in_backward:
            self._has_updates_in_backward = True
            self._end_groups()
            self._watch_backward()

    def _end_step_of_backward(self):
        if self._in_backward is not None:
            (optimizer, number), self._in_backward = self._in_backward, None
            self._end_step(optimizer, number)

    def _after_update(self, optimizer, _args, _kwargs):
        if self._is_counting or (self._may_be_unheard and self._stepping is None):
            if _is_compiling():
                return
            self._may_be_unheard = False
            known, number = self._last_optimizer
            if known() is not optimizer:
                number = self._number(optimizer)
        else:
            stepping = self._stepping
            if stepping is None or stepping[0] is not optimizer:
                return
            self._stepping, number = None, stepping[1]
        self._end_step(optimizer, number)

    def _end_step(self, optimizer, number):
        """A step is complete: its mark, and what is listened to in the next one."""
        marks = self._marks
        if marks.is_light:
            marks.light_step_ended(number)
        else:
            marks.step_ended(number)
            if self._tracing is not None:
                self._tracing.step_ended(optimizer)
            marks.next_step()
            self._watch_backward()
        is_counting = marks.is_light and marks.is_grouping
        if is_counting != self._is_counting:
            self._count(is_counting)
        if not is_counting and self._handles:
            self._forward_hooks[self._forward_key] = self._forward_hook

    def _count(self, is_counting):
        """From the next step on, let the begin of updates alone, or listen to it again."""
        if not self._handles:
            return
        self._is_counting = is_counting
        if is_counting:
            self._before_hooks.pop(self._before_key, None)
            self._after_hooks[self._after_key] = self._quick_counter()
        else:
            self._before_hooks[self._before_key] = self._before_update
            self._after_hooks[self._after_key] = self._after_update

    def _quick_counter(self):
        """Counts steps of the optimizer that stepped last until a reading is due: one short call, for here the caches
        are cold, and each function that is entered counts."""
        known, number = self._last_optimizer
        quick, otherwise = self._marks.quick, self._after_update
        self._marks.count_quickly(number)

        def counted(optimizer, args, kwargs):
            if _is_compiling():
                return
            now_ns = monotonic_ns()
            if now_ns < quick[2] and known() is optimizer:
                quick[0] += 1
                quick[1] = now_ns
            else:
                otherwise(optimizer, args, kwargs)

        return counted

    def _number(self, optimizer):
        """Its number as text; the last one seen is remembered."""
        number = b" %d" % self._numbers.setdefault(optimizer, len(self._numbers))
        self._last_optimizer = (weakref.ref(optimizer), number)
        return number


def _nothing():
    return None
