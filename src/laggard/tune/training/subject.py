"""A DeepSpeed training as something to tune, from what a user gave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from laggard.deepspeed_config import parse_config
from laggard.environment import ENV_REDUCE_SCATTER
from laggard.recommend.advice.situation import Situation
from laggard.tune.search.plan import Settings
from laggard.tune.space import check_space
from laggard.tune.subject import Change, Subject
from laggard.tune.training.measure import NAMES, TrainingRunner, own_environment
from laggard.tune.training.space import Training, batch_keys, switch_space, with_settings, zero_space, zero_starts
from laggard.tune.trial.template import parse_command


def training_subject(kind: str, settings: Mapping[str, Any], situation: Situation) -> Subject:
    """Makes the subject of `zero` or `deepspeed` from a campaign's settings. Raises UsageError."""
    training = Training(
        settings["config"],
        settings["ranks"],
        settings["parameters"],
        settings["gpu_memory"],
        settings["bus_bandwidth"],
        settings["nodes"],
        settings.get("reduce_scatter", False),
    )
    words = parse_command(settings["command"], NAMES, ("config",))
    space = zero_space(training) if kind == "zero" else switch_space(training)
    check_space(space)
    environ = {**own_environment(), **settings["environment"]}
    runner = TrainingRunner(words, training, space.default, settings["deadline"], environ)
    return Subject(
        kind=kind,
        space=space,
        measure=runner.measure,
        objective="seconds of a step",
        changes=lambda best: _changes(training, space.default, best),
        situation=situation._replace(
            deepspeed=parse_config(training.document), deepspeed_document=dict(training.document)
        ),
        starts=zero_starts(training, space) if kind == "zero" else (),
        notes=("Losses are compared where the training prints them as `loss: NUMBER`.",),
        settings=settings,
    )


def _changes(training: Training, default: Settings, best: Settings) -> list[Change]:
    found = []
    for name, value in best.items():
        if value == default[name]:
            continue
        if name == "micro_batch":
            before, after = (batch_keys(training, int(str(each[name]))) for each in (default, best))
            found += [Change("deepspeed", key, before[key], after[key]) for key in after if before[key] != after[key]]
        elif name == ENV_REDUCE_SCATTER:
            found.append(Change("launcher", name, default[name], value))
        else:
            found.append(Change("deepspeed", f"zero_optimization.{name}", default[name], value))
    return found


def tuned(settings: Mapping[str, Any], best: Settings) -> dict[str, Any]:
    """Returns the DeepSpeed configuration that a next step starts from."""
    training = Training(settings["config"], settings["ranks"])
    return with_settings(training, best)
