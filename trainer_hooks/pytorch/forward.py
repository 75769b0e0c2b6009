"""Records the forward passes of the modules that the script trains.

The hook is in the call of a module's class, once for each class. Nothing is put into the module itself: it is copied,
pickled, scripted and traced as without laggard, and torch keeps its fast path into forward().
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, islice
from threading import get_ident
from types import CodeType
from typing import Any, Final

from laggard.trainer_hooks.pytorch.training import TorchSteps
from laggard.trainer_hooks.record.events import EVALUATION, FORWARD, INPUT
from laggard.trainer_hooks.record.recorder import Recorder
from laggard.trainer_hooks.wrapping import HOOKED, after_import, wrap_once

_MAX_LOOKED_AT: Final = 8  # of a call's arguments, and of what is in one of them


def elements(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """The number of elements of the first tensor among a forward pass's arguments, or in the first list or mapping of
    tensors among them: tokens, where a model takes tokens. 0 where there is none, and where the model is being traced:
    to ask would become a part of the trace."""
    try:
        torch = sys.modules["torch"]
        if torch._C._is_tracing():
            return 0
        if args and isinstance(args[0], torch.Tensor):  # mostly
            return _known(args[0])
        return _search(torch.Tensor, chain(args, kwargs.values()))
    except Exception:
        return 0


def _search(kind: Any, values: Iterable[Any]) -> int:
    for value in islice(values, _MAX_LOOKED_AT):
        inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
        for each in chain((value,), islice(inner, _MAX_LOOKED_AT)):
            if isinstance(each, kind):  # and no stand-in of torch.fx's, which would note that it was asked
                return _known(each)
    return 0


def _known(tensor: Any) -> int:
    """A compiler's tensor may have a symbol for its size: that is not looked into."""
    count = tensor.numel()
    return count if type(count) is int else 0


ASKED_OF_TENSORS: Final = (elements, _search, _known)
"""The functions here that ask tensors something: a compiler must not take them for the user's."""


OnUnwatched = Callable[[Any], None]


class TorchForward:
    """The forward hooks of one process. `watched`: the modules whose forward pass is recorded, by id(), as weak
    references: a module that is gone is removed."""

    def __init__(self, recorder: Recorder, steps: TorchSteps) -> None:
        self.watched: dict[int, weakref.ref[Any]] = {}
        self.recorder = recorder
        self.steps = steps
        self.elements = elements  # by way of this object, which is not pickled along
        self.tensor: Any = None
        self.is_tracing: Callable[[], bool] = _never
        self.makes_graphs: Callable[[], bool] = _never
        self.evaluated: weakref.ref[Any] | None = None  # the watched module that was called last, in evaluation mode
        self._compiler_skips = False  # torch's compiler does not compile the hook

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles as None. A script's classes may be pickled with their functions (by cloudpickle, for MLflow or Ray):
        nothing of laggard goes along, and the reader needs no laggard."""
        return type(None), ()

    def evaluates(self) -> bool:
        """Whether the watched module that was called last was in evaluation mode, and still is."""
        module = None if self.evaluated is None else self.evaluated()
        return module is not None and not module.training

    def trains_within(self, module: Any) -> bool:
        """Whether a wrapper that is in evaluation mode, as DDP's is once Lightning has validated, wraps a module that
        trains: it makes a graph for a backward pass."""
        inner = module._modules.get("module")
        return inner is not None and inner.training and self.makes_graphs()

    def watch(self, module: Any) -> None:
        """Records the forward passes of `module` from now on; a second call changes nothing."""
        if id(module) not in self.watched:
            self.watched[id(module)] = weakref.ref(module, functools.partial(self._forget, id(module)))
        torch = sys.modules["torch"]
        self.tensor, self.is_tracing = torch.Tensor, torch._C._is_tracing
        self.makes_graphs = torch.is_grad_enabled
        self.hook(type(module))

    def watched_modules(self) -> list[Any]:
        """The modules whose forward pass is recorded."""
        return [module for each in list(self.watched.values()) if (module := each()) is not None]

    def hook(self, module_class: Any, on_unwatched: OnUnwatched | None = None) -> None:
        """Hooks a class of modules. `on_unwatched` is called with each module of it that is called and not watched."""
        own = vars(module_class).get("__call__")
        if not hasattr(own, HOOKED):
            module_class.__call__ = self._hooked_call(module_class, own, on_unwatched)

    def _forget(self, key: int, _: Any) -> None:
        self.watched.pop(key, None)

    def _hooked_call(self, module_class: Any, own: Any, on_unwatched: OnUnwatched | None) -> Any:
        hooks: TorchForward | None = self  # None where this was unpickled: see __reduce__()
        owner: Any = next(each for each in module_class.__mro__[1:] if "__call__" in vars(each))

        @functools.wraps(module_class.__call__)
        def called(module: Any, *args: Any, **kwargs: Any) -> Any:
            call = owner.__call__ if own is None else own  # looked up each time: torch.fx replaces it for a while
            if hooks is None:
                return call(module, *args, **kwargs)
            key = id(module)
            if key not in hooks.watched:
                if on_unwatched is not None:
                    on_unwatched(module)
                if key not in hooks.watched:
                    return call(module, *args, **kwargs)
            if get_ident() != hooks.steps.thread:
                return call(module, *args, **kwargs)
            if module.training or hooks.trains_within(module):
                hooks.evaluated = None
                if hooks.steps.passed:
                    hooks.steps.forward_begins()
                # Mostly a plain tensor, and then no function of Python is called for it.
                if args and type(first := args[0]) is hooks.tensor and not hooks.is_tracing():
                    hooks.recorder.enter(FORWARD, first.numel())
                else:
                    hooks.recorder.enter(FORWARD, hooks.elements(args, kwargs))
            else:
                hooks.evaluated = hooks.watched[key]
                hooks.recorder.enter(EVALUATION)
            try:
                return call(module, *args, **kwargs)
            finally:
                hooks.recorder.leave()

        setattr(called, HOOKED, True)
        called._torchdynamo_inline = module_class.__call__  # type: ignore[attr-defined]
        self._have_compiler_skip(called)
        return called

    def _have_compiler_skip(self, called: Any) -> None:
        """Has torch.compile compile what `called` calls, and not `called` itself. Once is enough: the code is the same
        for all classes. torch's compiler is not imported for that."""
        if not self._compiler_skips:
            self._compiler_skips = True
            codes = tuple(each.__code__ for each in (called, TorchSteps.forward_begins, *ASKED_OF_TENSORS))
            after_import("torch._dynamo.eval_frame", functools.partial(_skip, codes))


def _never() -> bool:
    return False


def _skip(codes: tuple[CodeType, ...], eval_frame: Any) -> None:
    for code in codes:
        eval_frame.skip_code(code)


def hook(forward: TorchForward) -> None:
    """Records next() of every DataLoader iterator of this process as input, or as evaluation while the model is in that
    mode; a second call changes nothing."""
    from torch.utils.data import dataloader

    recorder, steps = forward.recorder, forward.steps

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(iterator: Any) -> Any:
            if get_ident() != steps.thread:  # one that reads ahead: the training does not wait for it here
                return original(iterator)
            recorder.enter(EVALUATION if forward.evaluated is not None and forward.evaluates() else INPUT)
            try:
                return original(iterator)
            finally:
                recorder.leave()

        return recorded

    wrap_once(dataloader, "_BaseDataLoaderIter.__next__", wrap)
