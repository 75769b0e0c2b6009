"""Hooks DeepSpeed's pipeline engine: its instructions are the phases, and a train_batch() is a step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from laggard.trainer_hooks.engines.engine_methods import end_steps
from laggard.trainer_hooks.record.recorder import BACKWARD, FORWARD, INPUT, OPTIMIZER, Recorder
from laggard.trainer_hooks.session import Session

_PHASES: Final = {
    "LoadMicroBatch": INPUT,
    "ForwardPass": FORWARD,
    "BackwardPass": BACKWARD,
    "ReduceGrads": BACKWARD,
    "ReduceTiedGrads": BACKWARD,
    "OptimizerStep": OPTIMIZER,
}
"""The phase of an instruction, by its class. Sending and receiving is waiting and belongs to no phase."""


def hook(engine: Any, session: Session, number: int) -> None:
    """Hooks the engine. The groups' roles are set before: a group of two neighbours is a pipeline. `number`: the
    engine's, from EngineSteps.add_engine()."""
    recorder = session.recorder
    recorder.events.aggregator.expect_engine_gaps()  # the engine reads its input itself, and sends and receives
    engine._INSTRUCTION_MAP = {
        instruction: _record_instruction(engine, recorder, _PHASES[instruction.__name__], execute)
        if instruction.__name__ in _PHASES
        else execute
        for instruction, execute in engine._INSTRUCTION_MAP.items()
    }
    engine.train_batch = end_steps(engine, session, number, engine.train_batch)


def _record_instruction(engine: Any, recorder: Recorder, phase: int, execute: Callable[..., Any]) -> Callable[..., Any]:
    """`execute`, recorded as `phase` while the engine trains: an evaluation runs the same instructions."""

    @functools.wraps(execute)
    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not engine.training:
            return execute(self, *args, **kwargs)
        recorder.enter(phase)
        try:
            return execute(self, *args, **kwargs)
        finally:
            recorder.leave()

    return recorded
