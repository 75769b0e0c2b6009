"""The hooks in DeepSpeed's pipeline engine: its instructions are the phases, a train_batch() is a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from laggard.trainer_hooks.engines.wrapping import counted
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
"""By the class of the instruction. Sending and receiving is waiting, and in no phase."""


def hook(engine: Any, session: Session, number: int) -> None:
    """Puts the hooks into the engine. Roles are learned before: groups of neighbours are pipelines."""
    recorder = session.recorder
    recorder.mark_loader_seen()  # the engine reads its input itself
    engine._INSTRUCTION_MAP = {
        instruction: _phase(engine, recorder, _PHASES[instruction.__name__], execute)
        if instruction.__name__ in _PHASES
        else execute
        for instruction, execute in engine._INSTRUCTION_MAP.items()
    }
    engine.train_batch = counted(engine, session, number, engine.train_batch)


def _phase(engine: Any, recorder: Recorder, phase: int, execute: Callable[..., Any]) -> Callable[..., Any]:
    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not engine.training:  # evaluation runs the same instructions
            return execute(self, *args, **kwargs)
        recorder.enter(phase)
        try:
            return execute(self, *args, **kwargs)
        finally:
            recorder.leave()

    return recorded
