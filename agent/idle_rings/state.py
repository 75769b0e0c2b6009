"""The files of `laggard agent --idle-rings` for this node's other parts: its ring's session, for the probe `gpu_busy`,
and how its rings ended, for the agent's metrics."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from typing import Final

import msgspec

from laggard.kit.environment import ENV_STATE_DIR
from laggard.probes.gpu.model.services import RUNNING_PATH, RunningRing
from laggard.wire import WireError, decode, encode

OUTCOMES: Final = ("ok", "fail", "unknown", "job_came", "stopped")
_NAME: Final = "idle_rings.json"
_MAX_BYTES: Final = 1 << 16


class IdleRingsState(msgspec.Struct, frozen=True):
    """`rings`: how many ended how, since the node started; `ended_at`: the last one, Unix time; `abort_seconds`: how
    long the last one took to end that ended for a job."""

    rings: dict[str, int] = {}
    ended_at: float | None = None
    abort_seconds: float | None = None


class StateFolder:
    """/run/laggard/rings, or a folder in LAGGARD_STATE_DIR. Where it cannot be written, nothing is left."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        own = environ.get(ENV_STATE_DIR)
        self.path = os.path.join(own, "rings") if own else os.path.dirname(RUNNING_PATH)

    def make(self) -> None:
        with contextlib.suppress(OSError):
            os.makedirs(self.path, mode=0o755, exist_ok=True)

    def note_running(self, session: int | None) -> None:
        path = os.path.join(self.path, os.path.basename(RUNNING_PATH))
        if session is not None:
            self._write(path, encode(RunningRing(session)))
            return
        with contextlib.suppress(OSError):
            os.unlink(path)

    def note_outcome(self, outcome: str, abort_seconds: float | None) -> None:
        state = self.read()
        rings = {**state.rings, outcome: state.rings.get(outcome, 0) + 1}
        new = IdleRingsState(rings, time.time(), state.abort_seconds if abort_seconds is None else abort_seconds)
        self._write(os.path.join(self.path, _NAME), encode(new))

    def read(self) -> IdleRingsState:
        try:
            with open(os.path.join(self.path, _NAME), "rb") as file:
                return decode(file.read(_MAX_BYTES), IdleRingsState)
        except (OSError, WireError):
            return IdleRingsState()

    def _write(self, path: str, data: bytes) -> None:
        new = f"{path}.{os.getpid()}"
        with contextlib.suppress(OSError):
            with open(new, "wb") as file:
                file.write(data)
            os.replace(new, path)
