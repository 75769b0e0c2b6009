"""Notes the exceptions that end the training in frameworks that run it in a thread, catch what ends it, and kill the
process later: no excepthook gets these, and the process that is killed cannot tell."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from laggard.trainer_hooks.pytorch.import_hook import after_import
from laggard.trainer_hooks.record.ending import note_caught
from laggard.trainer_hooks.wrapping import wrap_once

CATCHERS: Final[tuple[tuple[str, str], ...]] = (
    # module, function or method: one of its arguments is the exception that was caught
    ("ray.train.v2._internal.execution.worker_group.thread_runner", "construct_user_exception_with_traceback"),
    ("ray.air._internal.util", "RunnerThread._propagate_exception"),  # Ray Train before its second version
)


def hook_catchers() -> None:
    """Has these functions' exceptions noted, wherever their modules are imported."""
    for module, name in CATCHERS:
        after_import(module, functools.partial(wrap_once, name=name, wrap=_noted))


def _noted(original: Callable[..., Any]) -> Callable[..., Any]:
    def noted(*args: Any, **kwargs: Any) -> Any:
        error = next((each for each in (*args, *kwargs.values()) if isinstance(each, BaseException)), None)
        if error is not None:
            note_caught(error)
        return original(*args, **kwargs)

    return noted
