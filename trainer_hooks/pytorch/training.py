"""Phases and steps of a script that trains with torch alone: DDP, FSDP, or nothing of the kind.

Backward is torch.autograd.backward, which Tensor.backward calls; optimizer is the step() of every torch optimizer;
forward is torch_forward.py's. With gradient accumulation, a step ends at the optimizer's step. Where an engine counts
the steps itself, only the phases are taken from here.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from threading import get_ident
from typing import Any, TypeVar

from laggard.trainer_hooks.record.recorder import BACKWARD, OPTIMIZER, Recorder
from laggard.trainer_hooks.steps.step_boundary import StepBoundary

F = TypeVar("F", bound=Callable[..., Any])
_NUMBER = "_laggard_number"  # torch's optimizers are pickled and copied without what else is in their __dict__


class TorchSteps:
    """The hooks of one process. `after_backward` is called within the phase, with when it began, once it is set.

    Each of these runs once a step, between thousands of torch's own calls: what a Python function costs then is not
    what it does but that it is there. So there are few of them.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.boundary = StepBoundary()
        self.counts = True  # whether an optimizer's step is the script's step
        self._numbers = itertools.count()
        self._recorder = recorder
        self.after_backward: Callable[[int], None] | None = None
        self.thread = get_ident()  # the training's: autograd's own run parts of what that one waits for
        self._sure = False  # of which that is: the first that trains, unless we were told

    def hook(self) -> None:
        """Hooks torch's own classes and functions."""
        import torch
        from torch.optim import optimizer

        torch.autograd.backward = self._backward(torch.autograd.backward)
        before, after = self._around_updates()
        optimizer.register_optimizer_step_pre_hook(_untraced(before))
        optimizer.register_optimizer_step_post_hook(_untraced(after))
        torch.amp.GradScaler.step = self._scaled_step(torch.amp.GradScaler.step)  # type: ignore[method-assign]

    def train_here(self) -> None:
        """This thread is the training's: frameworks have one that is not the interpreter's first."""
        self.thread, self._sure = get_ident(), True

    def key(self, optimizer: Any) -> int:
        """The optimizer's own for good. An id() may be another's later, on one rank and not on the next: their steps
        would be counted differently."""
        own = getattr(optimizer, "__dict__", None)
        if own is None:  # no optimizer of torch
            return -id(optimizer)
        key: int | None = own.get(_NUMBER)
        if key is None:
            key = own[_NUMBER] = next(self._numbers)
        return key

    def _backward(self, original: F) -> F:
        recorder = self._recorder

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if get_ident() != self.thread or not self._sure:
                if self._sure:
                    return original(*args, **kwargs)
                self.train_here()
            recorder.enter(BACKWARD)
            began = recorder.entered_at
            try:
                return original(*args, **kwargs)
            finally:
                if self.after_backward is not None and recorder.depth == 1:
                    self.after_backward(began)
                recorder.leave()

        backward._torchdynamo_inline = original  # type: ignore[attr-defined]
        return backward  # type: ignore[return-value]

    def _around_updates(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        recorder, boundary = self._recorder, self.boundary
        updating: set[int] = set()  # optimizers whose step() has begun

        def before(optimizer: Any, args: Any, kwargs: Any) -> Any:
            if get_ident() != self.thread:
                return None
            key = id(optimizer)
            if key in updating:  # its last step() raised an exception
                recorder.leave()
            updating.add(key)
            recorder.enter(OPTIMIZER)
            if len(args) > 1 or kwargs:
                return self._with_closure(args, kwargs)
            return None

        def after(optimizer: Any, args: Any, kwargs: Any) -> None:
            key = id(optimizer)
            if key in updating and get_ident() == self.thread:
                updating.discard(key)
                number = optimizer.__dict__.get(_NUMBER)
                if number is None or number != boundary.sole_updater or not self.counts:
                    self.update(optimizer)
                else:  # as update() has it, with fewer calls
                    recorder.step_will_end()
                recorder.leave()

        return before, after

    def _with_closure(self, args: Any, kwargs: Any) -> Any:
        """The arguments of an optimizer's step, where its closure is to be told from the update."""
        if self._recorder.depth == 1 and len(args) > 1 and callable(args[1]):
            return (args[0], self._closure(args[1]), *args[2:]), kwargs
        if self._recorder.depth == 1 and callable(kwargs.get("closure")):
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
                self._recorder.enter(OPTIMIZER)

        return closure  # type: ignore[return-value]

    def update(self, optimizer: Any) -> None:
        """`optimizer` has taken its step, or left it out on purpose. A step ends where its last phase does: an update
        may be made in the midst of a backward pass."""
        worked = self._recorder.optimizer_updated()
        if self.boundary.update(self.key(optimizer), worked) and self.counts:
            self._recorder.step_will_end()

    def _scaled_step(self, original: F) -> F:
        """A step that the scaler leaves out, for gradients that overflowed, is a step: its time was spent."""

        @functools.wraps(original)
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if get_ident() != self.thread:
                return original(scaler, optimizer, *args, **kwargs)
            taken: list[Any] = []
            inner = getattr(optimizer, "optimizer", optimizer)  # a wrapper such as Accelerate's
            handle = inner.register_step_post_hook(lambda *_: taken.append(None))
            self._recorder.enter(OPTIMIZER)
            try:
                result = original(scaler, optimizer, *args, **kwargs)
                if not taken:
                    self.update(inner)
                return result
            finally:
                handle.remove()
                self._recorder.leave()

        return step  # type: ignore[return-value]


def _untraced(hook: F) -> F:
    """torch.compile sees a function that does nothing: the hook breaks no graph and is compiled into none."""
    hook._torchdynamo_inline = _nothing  # type: ignore[attr-defined]
    return hook


def _nothing(*args: Any) -> None:
    return None
