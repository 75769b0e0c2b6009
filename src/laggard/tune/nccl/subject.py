"""NCCL's variables as something to tune, from what a user gave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from laggard.errors import UsageError
from laggard.nccl.variables import parse_version
from laggard.recommend.advice.situation import Situation
from laggard.tune.nccl.measure import NAMES, Runner, own_environment
from laggard.tune.nccl.messages import Message, Profile
from laggard.tune.nccl.variables import TRANSPORTS, Facts, nccl_space
from laggard.tune.search.plan import Settings
from laggard.tune.space import check_space
from laggard.tune.subject import Change, Subject
from laggard.tune.trial.template import parse_command


def nccl_subject(settings: Mapping[str, Any], situation: Situation) -> Subject:
    """Makes the subject from a campaign's settings, as they stand in its study. Raises UsageError."""
    messages = tuple(Message(op, size, times) for op, size, times in settings["messages"])
    command = settings["command"]
    words = parse_command(command, (*NAMES, "python"), ("bytes",)) if command else ()
    if command and not {"{test}", "{op}"} & set(_names(command)) and len({each.op for each in messages}) > 1:
        raise UsageError("--command lacks {test} or {op}: several operations are measured")
    current = settings["current"]
    facts = facts_of(settings, {each.op for each in messages})
    space = nccl_space(facts, current, settings["added"], settings["left_out"])
    check_space(space)
    runner = Runner(words, messages, settings["deadline"], {**own_environment(), **current})
    return Subject(
        kind="nccl",
        space=space,
        measure=runner.measure,
        objective="seconds of the messages of a step",
        changes=lambda best: _changes(space.default, best),
        situation=situation._replace(environment=current, environment_known=True),
        notes=_notes(settings),
        settings=settings,
    )


def facts_of(settings: Mapping[str, Any], collectives: set[str]) -> Facts:
    version = parse_version(settings["nccl_version"])
    if not version:
        raise UsageError(f"--nccl-version {settings['nccl_version']!r} is no version, such as 2.27.5")
    if settings["transport"] not in TRANSPORTS:
        raise UsageError(f"--transport {settings['transport']!r} is none of {', '.join(TRANSPORTS)}")
    return Facts(
        version=version,
        transport=settings["transport"],
        nodes=settings["nodes"],
        local_ranks=settings["local_ranks"],
        nics=settings["nics"],
        compute_capability=settings["compute_capability"],
        switch=settings["nvlink_switch"],
        collectives=frozenset(collectives),
    )


def _names(command: str) -> list[str]:
    return [name for name in ("{test}", "{op}") if name in command]


def _changes(default: Settings, best: Settings) -> list[Change]:
    return [Change("nccl_env", name, default[name], value) for name, value in best.items() if value != default[name]]


def _notes(settings: Mapping[str, Any]) -> tuple[str, ...]:
    share = settings["share"]
    measured = ", ".join(f"{op} of {size} B" for op, size, _ in settings["messages"])
    return (
        f"Measured: {measured} ({share:.0%} of the time in collectives, {settings['source']}).",
        "Alone, without computing beside it: confirm in training with `laggard tune deepspeed` or by hand.",
    )


def settings_of(profile: Profile) -> dict[str, Any]:
    """Returns the part of a campaign's settings that says what is measured."""
    return {"messages": [list(each) for each in profile.messages], "share": profile.share, "source": profile.source}
