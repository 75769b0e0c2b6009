"""Digests of the parameters after steps, for LAGGARD_DIGEST_STEPS: replicas whose digests differ are not the same any
more."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from laggard.environment import ENV_DIGEST_STEPS
from laggard.rankfile.fact_names import DIGEST_NO_MODULE, DIGEST_SHARDED, DIGEST_UNREADABLE
from laggard.trainer_hooks.device.captures import GraphCaptures
from laggard.trainer_hooks.pytorch.parameter_digest import are_sharded, digest, trained_parameters
from laggard.trainer_hooks.record.digest_log import DigestLog
from laggard.trainer_hooks.record.recorder import Recorder

if TYPE_CHECKING:
    from laggard.trainer_hooks.device.digest_copy import DigestCopies


def digest_steps(environ: Mapping[str, str]) -> int:
    """The steps from one digest to the next, by LAGGARD_DIGEST_STEPS; 0: none is asked for, or not by a number."""
    text = environ.get(ENV_DIGEST_STEPS, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


class StepDigests:
    """Computes a digest after the first step that ends, and after each whose number `every` divides."""

    def __init__(self, every: int, log: DigestLog, captures: GraphCaptures) -> None:
        self._every, self._log, self._captures = every, log, captures
        self._watched: Callable[[], Iterable[Any]] = tuple
        self._engine_modules: list[weakref.ref[Any]] = []
        self._copies: DigestCopies | None = None
        self._begun = False
        self._over = False  # nothing is computed any more

    def begin(self, recorder: Recorder, watched: Callable[[], Iterable[Any]]) -> None:
        """Has each end of a step of `recorder` followed by what is due then. `watched` returns the modules that the
        process trains, by now."""
        self._watched = watched
        end_step = recorder.end_step

        def end_and_digest(next_step: int) -> None:
            finished = recorder.step
            end_step(next_step)
            try:
                self._step_ended(finished)
            except Exception:  # of a kind of tensor that torch cannot read so, say
                self._over = True
                self._log.skip(DIGEST_UNREADABLE)

        recorder.end_step = end_and_digest  # type: ignore[method-assign]

    def add_module(self, module: Any) -> None:
        """An engine trains `module`."""
        self._engine_modules.append(weakref.ref(module))

    def stop(self) -> None:
        """Computes nothing from here on: the process is a forked child, or ends."""
        self._over = True

    def close(self) -> None:
        """The training is over: takes what has arrived by now."""
        if not self._over:
            self._take_arrived()
        self._over = True

    def _step_ended(self, step: int) -> None:
        if self._over:
            return
        self._take_arrived()
        if self._begun and step % self._every:
            return
        self._begun = True
        modules = [*self._watched(), *filter(None, (each() for each in self._engine_modules))]
        parameters = trained_parameters(modules)
        reason = DIGEST_SHARDED if are_sharded(modules, parameters) else "" if parameters else DIGEST_NO_MODULE
        kind = parameters[0].device.type if parameters else ""
        if not reason and kind not in ("cpu", "cuda"):
            reason = DIGEST_UNREADABLE
        if reason:
            self._over = True
            self._log.skip(reason)
        elif kind == "cpu":
            self._log.add(step, int(digest(sys.modules["torch"], parameters)), self._every)
        elif not self._captures.under_way():
            self._start_copy(step, parameters)

    def _start_copy(self, step: int, parameters: list[Any]) -> None:
        torch = sys.modules["torch"]
        if self._copies is None:
            from laggard.trainer_hooks.device.digest_copy import DigestCopies

            self._copies = DigestCopies(torch, parameters[0].device.index, self._captures)
        self._copies.start(step, digest(torch, parameters))

    def _take_arrived(self) -> None:
        for step, value in self._copies.arrived() if self._copies is not None else ():
            self._log.add(step, value, self._every)
