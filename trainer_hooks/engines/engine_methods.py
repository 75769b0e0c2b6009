"""Wraps an engine's methods so that they record phases and steps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from laggard.trainer_hooks.record.recorder import Recorder
from laggard.trainer_hooks.session import Session


def record_phase(recorder: Recorder, phase: int, original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, recorded as `phase`."""

    @functools.wraps(original)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        recorder.enter(phase)
        try:
            return original(*args, **kwargs)
        finally:
            recorder.leave()

    return recorded


def end_steps(engine: Any, session: Session, number: int, original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, the engine's method that is called once for each micro-batch or batch: it ends a step where it
    increases global_steps. `number`: the engine's, from EngineSteps.add_engine()."""

    @functools.wraps(original)
    def counted(*args: Any, **kwargs: Any) -> Any:
        before = engine.global_steps
        result = original(*args, **kwargs)
        if engine.global_steps != before:
            session.engines.updated(number, engine.global_steps)
        return result

    return counted
