"""The forward passes that are the script's: those of the modules that it trains.

What is hooked is the call of a module's class, once a class. Nothing is put into the module itself: it is copied,
pickled, scripted and traced as if nobody watched, and torch takes its short way into forward().
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import Any, Final

from laggard.trainer_hooks.pytorch.import_hook import after_import
from laggard.trainer_hooks.pytorch.training import TorchSteps
from laggard.trainer_hooks.record.recorder import FORWARD, Recorder

_HOOKED: Final = "_laggard_hooked"

Meet = Callable[[Any], None]


class TorchForward:
    """`watched`: the modules that count, by their id(). They are not held: of one that is gone the number goes too."""

    def __init__(self, recorder: Recorder, steps: TorchSteps) -> None:
        self.watched: dict[int, weakref.ref[Any]] = {}
        self.recorder = recorder
        self.steps = steps
        self._told_compiler = False

    def __reduce__(self) -> tuple[Any, ...]:
        """None. The classes that a script defines may be pickled with their functions (cloudpickle, for MLflow or Ray):
        nothing of ours goes along, and who reads them needs no laggard."""
        return type(None), ()

    def watch(self, module: Any) -> None:
        """The forward pass of `module` is the script's, or part of it; a second time changes nothing."""
        if id(module) not in self.watched:
            self.watched[id(module)] = weakref.ref(module, functools.partial(self._gone, id(module)))
        self.hook(type(module))

    def hook(self, kind: Any, meet: Meet | None = None) -> None:
        """Hooks the class `kind` of modules. `meet` is told of each that is called without being watched."""
        own = vars(kind).get("__call__")
        if not hasattr(own, _HOOKED):
            kind.__call__ = self._watching(kind, own, meet)

    def _gone(self, key: int, _: Any) -> None:
        self.watched.pop(key, None)

    def _watching(self, kind: Any, own: Any, meet: Meet | None) -> Any:
        here: TorchForward | None = self  # None where this was unpickled: see __reduce__()
        owner: Any = next(each for each in kind.__mro__[1:] if "__call__" in vars(each))

        @functools.wraps(kind.__call__)
        def called(module: Any, *args: Any, **kwargs: Any) -> Any:
            call = owner.__call__ if own is None else own  # looked up each time: torch.fx exchanges it for a while
            if here is None:
                return call(module, *args, **kwargs)
            if meet is not None and id(module) not in here.watched:
                meet(module)
            if id(module) not in here.watched or not module.training or get_ident() != here.steps.thread:
                return call(module, *args, **kwargs)
            here.recorder.enter(FORWARD)
            try:
                return call(module, *args, **kwargs)
            finally:
                here.recorder.leave()

        setattr(called, _HOOKED, True)
        called._torchdynamo_inline = kind.__call__  # type: ignore[attr-defined]
        self._tell_compiler(called)
        return called

    def _tell_compiler(self, called: Any) -> None:
        """torch.compile compiles what this calls, and not it. Of all classes it is the same code; torch's compiler is
        not imported for that."""
        if not self._told_compiler:
            self._told_compiler = True
            after_import("torch._dynamo.eval_frame", lambda eval_frame: eval_frame.skip_code(called.__code__))
