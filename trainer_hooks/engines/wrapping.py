"""Wrappers around an engine's methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from laggard.trainer_hooks.record.recorder import Recorder
from laggard.trainer_hooks.session import Session


def phase(recorder: Recorder, phase: int, original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, recorded as `phase`."""

    def recorded(*args: Any, **kwargs: Any) -> Any:
        recorder.enter(phase)
        try:
            return original(*args, **kwargs)
        finally:
            recorder.leave()

    return recorded


def counted(engine: Any, session: Session, number: int, original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, called once a micro-batch or a batch: it was the optimizer's step where global_steps moves on."""

    def updating(*args: Any, **kwargs: Any) -> Any:
        before = engine.global_steps
        result = original(*args, **kwargs)
        if engine.global_steps != before:
            session.engines.updated(number, engine.global_steps)
        return result

    return updating
