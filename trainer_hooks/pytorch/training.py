"""Records phases and steps of a script that trains with torch alone: with DDP, with FSDP, or with neither.

The backward phase is torch.autograd.backward, which Tensor.backward calls; the optimizer phase is the step() of every
torch optimizer; forward.py records the forward phase. With gradient accumulation, a step ends at the optimizer's step.
Where an engine ends the steps itself, this module records only the phases.
"""

from __future__ import annotations

import functools
import gc
import itertools
import sys
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import Any, TypeVar

from laggard.trainer_hooks.record.events import BACKWARD, OPTIMIZER
from laggard.trainer_hooks.record.recorder import Recorder
from laggard.trainer_hooks.steps import REPEATS, StepBoundary
from laggard.trainer_hooks.wrapping import call_after, suppress_errors

# Tells an optimizer's step() that only makes its state from one that updates. torch's distributed checkpoints
# (torch.distributed.checkpoint.state_dict) call it with gradients of zero, to have the state into which they load.


def only_makes_state(optimizer: Any) -> bool:
    """Whether `optimizer`, a torch.optim.Optimizer, has gradients and all of them are zero on this rank. False also
    where that can't be read. A device is waited for, so this is for a process's first update alone."""
    torch = sys.modules["torch"]
    try:
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():  # asking more would start CUDA
            return False  # a wait would break the capture
        gradients = [each.grad for group in optimizer.param_groups for each in group["params"] if each.grad is not None]
        local = [getattr(each, "_local_tensor", each) for each in gradients]  # a DTensor's any() is a collective
        with torch.no_grad():
            return any(each.numel() for each in local) and not any(bool(each.any()) for each in local)
    except Exception:  # a subclass of Tensor, or of Optimizer, can do anything
        return False


F = TypeVar("F", bound=Callable[..., Any])
_NUMBER = "_laggard_number"  # in the __dict__ of an optimizer, which torch neither pickles nor copies with it


class TorchSteps:
    """The hooks of one process. Once `after_backward` is set, it is called at the end of each backward phase, with the
    time at which the phase began.

    Each hook runs once a step, between thousands of torch's own calls. A Python function's cost is then the call and
    not what it does, so there are few functions.
    """

    def __init__(self, recorder: Recorder, on_optimizer: Callable[[Any], None] = lambda _: None) -> None:
        """`on_optimizer` is called with an optimizer that updates, except where it alone has updated before."""
        self.boundary = StepBoundary()
        self._on_optimizer = on_optimizer
        self.ends_steps = True  # False: engines end the steps
        self._any_made = False
        self._numbers = itertools.count()
        self._foreign: dict[int, tuple[Any, int]] = {}  # by id(): optimizers not of torch, and their numbers
        self._updates = 0  # made by torch's optimizers on the training thread
        self.passed = False  # a backward pass has ended, and no forward pass has begun since
        self._passes = 0  # forward passes after a backward pass with collectives
        self._launched = 0
        self.updates_elsewhere = 0  # on other threads, which nothing is recorded of
        self._recorder = recorder
        self.after_backward: Callable[[int], None] | None = None
        self.thread = get_ident()  # the training thread; autograd's threads run parts of what it waits for
        self._thread_is_known = False  # the first thread that trains, unless claim_training_thread() comes before

    def hook(self) -> None:
        """Hooks torch's own classes and functions."""
        import torch
        from torch.optim import optimizer

        torch.autograd.backward = self._backward(torch.autograd.backward)
        call_after(optimizer.Optimizer, "__init__", lambda _, made, *__, **___: self._add(made))
        before, after = self._around_updates()
        optimizer.register_optimizer_step_pre_hook(_untraced(before))
        optimizer.register_optimizer_step_post_hook(_untraced(after))
        torch.amp.GradScaler.step = self._scaled_step(torch.amp.GradScaler.step)  # type: ignore[method-assign]

    def claim_training_thread(self) -> None:
        """The calling thread is the training thread. In some frameworks that is not the interpreter's first thread."""
        self.thread, self._thread_is_known = get_ident(), True

    def are_expected(self) -> bool:
        """Whether an engine or an optimizer of torch is there, whose updates will end steps."""
        return not self.ends_steps or self._any_made

    def forward_begins(self) -> None:
        """A forward pass begins after a backward pass, and nothing is there whose updates will end steps: parameters
        are updated by hand, or by an optimizer that is not torch's. Each backward pass with collectives ends a step;
        those without are micro-steps. No generator is in this: a compiler may look at what a forward pass calls."""
        self.passed = False
        launched = self._recorder.launched()
        if self._recorder.depth or launched == self._launched:
            return
        self._launched = launched
        self._passes += 1
        if self._passes > REPEATS:
            self._recorder.end_step(self._recorder.step + 1)

    def optimizer_key(self, optimizer: Any) -> int:
        """A number that stays the optimizer's own. An id() could later belong to another optimizer, on one rank and not
        on the next, and the ranks would count their steps differently."""
        if not isinstance(optimizer, sys.modules["torch"].optim.Optimizer):
            return self._foreign_key(optimizer)
        own = optimizer.__dict__
        key: int | None = own.get(_NUMBER)
        if key is None:
            key = own[_NUMBER] = next(self._numbers)
        return key

    def _foreign_key(self, optimizer: Any) -> int:
        """The same for an optimizer that is not torch's: it may be pickled with all that it has, so nothing is put
        into it."""
        known = self._foreign.get(id(optimizer))
        if known is None:
            try:
                gone = weakref.ref(optimizer, functools.partial(self._forget_foreign, id(optimizer)))
            except TypeError:  # it has slots, and none for that
                return -id(optimizer)
            known = self._foreign[id(optimizer)] = gone, next(self._numbers)
        return known[1]

    def _forget_foreign(self, key: int, _: Any) -> None:
        self._foreign.pop(key, None)

    def _add(self, optimizer: Any) -> None:
        """`optimizer` has just been made."""
        self._any_made = True
        self.boundary.add(self.optimizer_key(optimizer))

    def _backward(self, original: F) -> F:
        recorder = self._recorder

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if get_ident() != self.thread or not self._thread_is_known:
                if self._thread_is_known:
                    return original(*args, **kwargs)
                self.claim_training_thread()
            recorder.enter(BACKWARD)
            began = recorder.entered_at
            try:
                return original(*args, **kwargs)
            finally:
                if self.after_backward is not None and recorder.depth == 1:
                    try:
                        self.after_backward(began)
                    except Exception:
                        recorder.totals.errors += 1
                self.passed = recorder.depth == 1 and not (self.are_expected() or self.boundary.has_begun)
                recorder.leave()

        backward._torchdynamo_inline = original  # type: ignore[attr-defined]
        return backward  # type: ignore[return-value]

    def _around_updates(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        recorder, boundary = self._recorder, self.boundary
        updating: set[int] = set()  # optimizers whose step() has begun

        def before(optimizer: Any, args: Any, kwargs: Any) -> Any:
            if get_ident() != self.thread:
                self.updates_elsewhere += 1
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
                self._updates += 1
                number = optimizer.__dict__.get(_NUMBER)
                if number is None or number != boundary.sole_updater or not self.ends_steps:
                    self.update(optimizer)
                else:  # the same as update() does here, with fewer calls
                    recorder.worked, recorder.step_will_end = False, True
                recorder.leave()

        return before, after

    def _with_closure(self, args: Any, kwargs: Any) -> Any:
        """The arguments of an optimizer's step() with its closure wrapped; None where there is no closure to wrap."""
        if self._recorder.depth == 1 and len(args) > 1 and callable(args[1]):
            return (args[0], self._closure(args[1]), *args[2:]), kwargs
        if self._recorder.depth == 1 and callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": self._closure(kwargs["closure"])}
        return None

    def _closure(self, original: F) -> F:
        """`original`, which an optimizer calls for the loss, outside the optimizer phase: it makes a forward and a
        backward pass. Lightning trains so."""

        @functools.wraps(original)
        def closure(*args: Any, **kwargs: Any) -> Any:
            self._recorder.leave()
            try:
                return original(*args, **kwargs)
            finally:
                self._recorder.enter(OPTIMIZER)

        return closure  # type: ignore[return-value]

    def update(self, optimizer: Any) -> None:
        """`optimizer` has made its update, or skipped it on purpose. The step ends when its outermost phase does: an
        update may be made within a backward pass."""
        suppress_errors(self._on_optimizer, optimizer)
        worked = self._recorder.optimizer_updated()
        if not (worked or self.boundary.has_begun) and only_makes_state(optimizer):
            return
        if self.boundary.update(self.optimizer_key(optimizer), worked, self._recorder.step) and self.ends_steps:
            self._recorder.step_will_end = True

    def _scaled_step(self, original: F) -> F:
        """`original`, GradScaler.step. A step that the scaler skips, because gradients overflowed, counts as a step:
        its time was spent."""

        @functools.wraps(original)
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if get_ident() != self.thread:
                return original(scaler, optimizer, *args, **kwargs)
            before = self._updates
            self._recorder.enter(OPTIMIZER)
            try:
                result = original(scaler, optimizer, *args, **kwargs)
                if self._updates == before:
                    suppress_errors(lambda: self.update(hooked_optimizer(optimizer)))
                return result
            finally:
                self._recorder.leave()

        return step  # type: ignore[return-value]


def hooked_optimizer(optimizer: Any) -> Any:
    """The optimizer of torch's, with its hooks, that `optimizer` is, or that it wraps (as those of Accelerate and of
    Lookahead do); else itself."""
    torch = sys.modules["torch"]

    def is_hooked(each: Any) -> bool:  # its __init__, which puts the hooks in, was called
        return isinstance(each, torch.optim.Optimizer) and "_optimizer_step_post_hooks" in vars(each)

    held = () if is_hooked(optimizer) else getattr(optimizer, "__dict__", {}).values()
    return next(filter(is_hooked, held), optimizer)


def _untraced(hook: F) -> F:
    """`hook`, in whose place torch.compile uses a function that does nothing: the hook neither breaks a graph nor
    becomes a part of one."""
    hook._torchdynamo_inline = _nothing  # type: ignore[attr-defined]
    return hook


def _nothing(*args: Any) -> None:
    return None


# Finds the modules that an optimizer trains, where nothing has named them: a loop of its own, without DDP, FSDP or an
# engine. It looks through all objects of the process, some tenths of a second for millions, and so once.


def trained_modules(optimizer: Any) -> list[Any]:
    """The outermost modules that hold a parameter of `optimizer`: what a script calls for its forward pass."""
    nn = sys.modules["torch"].nn
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    # By type(): other objects may answer isinstance() with code of their own, as lazy proxies do.
    modules = [each for each in gc.get_objects() if issubclass(type(each), nn.Module) and _is_made(each)]
    holders = (nn.ModuleList, nn.ModuleDict)  # which nobody calls
    inner = {id(child) for each in modules if type(each) not in holders for child in each._modules.values()}
    outermost = (each for each in modules if id(each) not in inner and type(each) not in holders)
    return [each for each in outermost if any(id(parameter) in trained for parameter in each.parameters())]


def _is_made(module: Any) -> bool:
    """False of one whose __init__() has not come to that of its base."""
    return "_modules" in module.__dict__ and "_parameters" in module.__dict__
