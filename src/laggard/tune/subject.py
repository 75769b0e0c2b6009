"""The subject of tuning: its space, how one configuration is measured, and what a result means for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from laggard.recommend.advice.situation import Situation
from laggard.tune.campaign import Measure
from laggard.tune.search.plan import Settings
from laggard.tune.space import Space, Value


class Change(NamedTuple):
    """One setting to change, as a recommendation names it."""

    target: str
    """The thing to change: nccl_env, deepspeed; launcher: a variable of the job."""
    key: str
    current: Value
    recommended: Value


class Subject(NamedTuple):
    kind: str
    """The kind of subject: nccl, zero, deepspeed."""
    space: Space
    measure: Measure
    objective: str
    """The meaning of a time: `seconds of a step`."""
    changes: Callable[[Settings], list[Change]]
    """The changes from the default to a configuration."""
    situation: Situation = Situation()
    """The situation that files of a recommendation are written from."""
    starts: tuple[Settings, ...] = ()
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = {}
    """The settings that the campaign was started with, as JSON: enough to make the subject again."""
