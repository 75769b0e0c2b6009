"""`step` and `phase`: what a loop of one's own says of itself, as context managers and as decorators.

    for batch in batches:
        with step():
            with phase("input"):
                ...
            train(batch)
        with phase("evaluation"):
            ...

They may stay in the code: where laggard does nothing, as in a process that was started without it, each costs a
microsecond. Neither raises, and neither keeps an exception of the script's from getting out.
"""

from __future__ import annotations

import sys
from contextlib import ContextDecorator
from threading import get_ident
from typing import Any, Final

from laggard.constants import PHASES
from laggard.trainer_hooks.attach import current_session, loop_session
from laggard.trainer_hooks.session import Session

ALIASES: Final = {
    "data": "input",
    "load": "input",
    "eval": "evaluation",
    "evaluate": "evaluation",
    "validate": "evaluation",
    "validation": "evaluation",
    "test": "evaluation",
    "save": "checkpoint",
    "ckpt": "checkpoint",
    "log": "logging",
    "metrics": "logging",
}
"""Other words for phases, as scripts use them."""

_PLACES: Final = {
    **{name: place for place, name in enumerate(PHASES)},
    **{alias: PHASES.index(name) for alias, name in ALIASES.items()},
}
_told: set[str] = set()  # names that are no phase, each told of once


class phase(ContextDecorator):
    """Records what runs in it as the phase `name`: input, forward, backward, optimizer, evaluation, checkpoint, logging
    or between_steps, or a word of ALIASES. Of phases within each other the outer one counts. Any other name counts as
    between_steps, and one line says so."""

    def __init__(self, name: str) -> None:
        self._place = _place_of(name)
        self._entered: list[Session | None] = []  # a decorated function may call itself

    def __enter__(self) -> phase:
        session = _session_of_this_thread(current_session())
        self._entered.append(session)
        if session is not None:
            session.loop.enter(self._place)
        return self

    def __exit__(self, *_: object) -> None:
        session = self._entered.pop()
        if session is not None:
            session.loop.leave()


class step(ContextDecorator):
    """Records what runs in it as one step of training; from the first on, no optimizer ends steps. For loops that have
    no optimizer of torch's, such as JAX's. What no phase() in it names counts as forward."""

    def __enter__(self) -> step:
        session = loop_session()
        if session is not None:
            session.begin_loop_step()
        return self

    def __exit__(self, *_: object) -> None:
        session = _session_of_this_thread(current_session())
        if session is not None:
            session.loop.end()


def _session_of_this_thread(session: Session | None) -> Session | None:
    """`session`, None on other threads than the training's: what these do beside it is no phase of the step."""
    return session if session is not None and get_ident() == session.steps.thread else None


def _place_of(name: Any) -> int:
    place = _PLACES.get(name) if isinstance(name, str) else None
    if place is not None:
        return place
    if repr(name) not in _told and len(_told) < len(PHASES):
        _told.add(repr(name))
        known = ", ".join(PHASES[:-1])
        print(f"laggard: phase({name!r:.60}) counts as between_steps; the phases are {known}", file=sys.stderr)
    return PHASES.index("between_steps")
