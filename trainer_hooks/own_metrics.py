"""This rank's own times as a mapping, for another tool: W&B, MLflow, TensorBoard."""

from __future__ import annotations

from typing import Final

from laggard.constants import PHASES
from laggard.trainer_hooks.attach import current_session

_PREFIX: Final = "laggard/"
_DRAIN_SECONDS: Final = 0.2  # that is waited for the thread which counts

_before: dict[str, float] = {}


def metrics() -> dict[str, float]:
    """The measurements since the last call, in seconds a step: `laggard/step_seconds`, `laggard/waited_seconds`, each
    phase that took time (`laggard/forward_seconds`), and `laggard/steps`, how many there were. Empty before the first
    step, and where laggard does nothing. Never raises."""
    session = current_session()
    if session is None:
        return {}
    session.recorder.drain(_DRAIN_SECONDS)
    totals = session.recorder.totals
    now = {"steps": float(totals.steps), "step_seconds": totals.step_ns / 1e9, "waited_seconds": totals.waited_ns / 1e9}
    now |= {f"{name}_seconds": spent / 1e9 for name, spent in zip(PHASES, totals.phases_ns, strict=True)}
    made = {name: value - _before.get(name, 0.0) for name, value in now.items()}
    steps = made.pop("steps")
    if steps <= 0:
        return {}
    _before.update(now)
    means = {name: value / steps for name, value in made.items() if value > 0 or name == "waited_seconds"}
    return {f"{_PREFIX}steps": steps, **{f"{_PREFIX}{name}": value for name, value in means.items()}}
