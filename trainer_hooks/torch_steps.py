"""Phases and steps of a script that trains with torch alone: DDP, FSDP, or nothing of the kind.

Backward is torch.autograd.backward, which Tensor.backward calls; optimizer is the step() of every torch optimizer;
forward is that of the outermost module that is known to be trained. With gradient accumulation, a step ends at the
optimizer's step. Where an engine counts the steps itself, only the phases are taken from here.
"""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from laggard.trainer_hooks.recorder import BACKWARD, FORWARD, OPTIMIZER, Recorder
from laggard.trainer_hooks.steps import StepClock

F = TypeVar("F", bound=Callable[..., Any])
_HOOKED = "_laggard_hooked"


class TorchSteps:
    """The hooks of one process. `end_step` is called outside all phases; `after_backward` within the phase."""

    def __init__(self, recorder: Recorder, end_step: Callable[[], None], after_backward: Callable[[int], None]) -> None:
        self.clock = StepClock()
        self.counts = True  # whether an optimizer's step is the script's step
        self._recorder = recorder
        self._end_step = end_step
        self._after_backward = after_backward
        self._thread = threading.get_ident()
        self._ended = False  # a step whose last phase is not left yet
        self._updating: set[int] = set()  # optimizers whose step() has begun
        self._keys: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._numbers = itertools.count()

    def hook(self) -> None:
        """Hooks torch's own classes and functions."""
        import torch
        from torch.optim import optimizer

        torch.autograd.backward = self._backward(torch.autograd.backward)
        optimizer.register_optimizer_step_pre_hook(_untraced(self._before_update))
        optimizer.register_optimizer_step_post_hook(_untraced(self._after_update))
        torch.amp.GradScaler.step = self._scaled_step(torch.amp.GradScaler.step)  # type: ignore[method-assign]

    def watch(self, module: Any) -> None:
        """The forward pass of `module` is the script's, or part of it; a second time changes nothing."""
        if module.__dict__.get(_HOOKED):
            return
        entered: list[bool] = []

        def before(module: Any, args: Any) -> None:
            entered.append(module.training and self.mine())
            if entered[-1]:
                self.enter(FORWARD)

        def after(module: Any, args: Any, result: Any) -> None:
            if entered and entered.pop():
                self.leave()

        module.register_forward_pre_hook(_untraced(before), prepend=True)
        module.register_forward_hook(_untraced(after), always_call=True)
        module.__dict__[_HOOKED] = True

    def key(self, optimizer: Any) -> int:
        """The optimizer's own for good. An id() may be another's later, on one rank and not on the next: their steps
        would be counted differently."""
        try:
            key = self._keys.get(optimizer)
            if key is None:
                key = self._keys[optimizer] = next(self._numbers)
            return key
        except TypeError:  # it takes no weak reference: no optimizer of torch
            return -id(optimizer)

    def enter(self, phase: int) -> None:
        if phase != OPTIMIZER:
            self.clock.work()
        self._recorder.enter(phase)

    def leave(self) -> None:
        self._recorder.leave()
        self._settle()

    def _settle(self) -> None:
        """A step ends where its last phase does: an update may be made in the midst of a backward pass."""
        if self._ended and self._recorder.between_phases():
            self._ended = False
            self._end_step()

    def mine(self) -> bool:
        """The recorder is the training thread's. Autograd's own threads run parts of what that one waits for."""
        return threading.get_ident() == self._thread

    def _backward(self, original: F) -> F:
        recorder = self._recorder

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if not self.mine():
                return original(*args, **kwargs)
            self.enter(BACKWARD)
            began = recorder.entered
            try:
                return original(*args, **kwargs)
            finally:
                if recorder.outermost():
                    self._after_backward(began)
                self.leave()

        backward._torchdynamo_inline = original  # type: ignore[attr-defined]
        return backward  # type: ignore[return-value]

    def _before_update(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        if not self.mine():
            return None
        if self.key(optimizer) in self._updating:  # its last step() raised an exception
            self._recorder.leave()
        self._updating.add(self.key(optimizer))
        self.enter(OPTIMIZER)
        if self._recorder.outermost() and len(args) > 1 and callable(args[1]):
            return (args[0], self._closure(args[1]), *args[2:]), kwargs
        if self._recorder.outermost() and callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": self._closure(kwargs["closure"])}
        return None

    def _closure(self, original: F) -> F:
        """What an optimizer calls for the loss: forward and backward, not part of the update. Lightning trains so."""

        @functools.wraps(original)
        def closure(*args: Any, **kwargs: Any) -> Any:
            self._recorder.leave()
            try:
                return original(*args, **kwargs)
            finally:
                self.enter(OPTIMIZER)

        return closure  # type: ignore[return-value]

    def _after_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self.key(optimizer) in self._updating and self.mine():
            self._updating.discard(self.key(optimizer))
            self.update(optimizer)
            self.leave()

    def update(self, optimizer: Any) -> None:
        """`optimizer` has taken its step, or left it out on purpose."""
        if self.clock.update(self.key(optimizer)) and self.counts:
            self._ended = True

    def _scaled_step(self, original: F) -> F:
        """A step that the scaler leaves out, for gradients that overflowed, is a step: its time was spent."""

        @functools.wraps(original)
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.mine():
                return original(scaler, optimizer, *args, **kwargs)
            taken: list[Any] = []
            inner = getattr(optimizer, "optimizer", optimizer)  # a wrapper such as Accelerate's
            handle = inner.register_step_post_hook(lambda *_: taken.append(None))
            self.enter(OPTIMIZER)
            try:
                result = original(scaler, optimizer, *args, **kwargs)
                if not taken:
                    self.update(inner)
                return result
            finally:
                handle.remove()
                self.leave()

        return step  # type: ignore[return-value]


def _untraced(hook: F) -> F:
    """torch.compile sees a function that does nothing: the hook breaks no graph and is compiled into none."""

    @functools.wraps(hook)
    def guarded(*args: Any) -> Any:
        return hook(*args)

    guarded._torchdynamo_inline = _nothing  # type: ignore[attr-defined]
    return guarded  # type: ignore[return-value]


def _nothing(*args: Any) -> None:
    return None
