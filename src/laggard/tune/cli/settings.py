"""The settings of a campaign, from the words of `laggard tune`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import Any

from laggard.deepspeed_config import find_problems, is_deepspeed_config
from laggard.environment import ENV_REDUCE_SCATTER
from laggard.errors import UsageError
from laggard.nccl.variable_table import TABLE_VERSION
from laggard.nccl.variables import may_be_shown
from laggard.recommend.advice.situation import Situation
from laggard.recommend.given_files import GivenFiles
from laggard.tune.nccl.messages import of_recording, parse_messages
from laggard.tune.nccl.subject import nccl_subject, settings_of
from laggard.tune.subject import Subject
from laggard.tune.training.subject import training_subject


def settings_for(kind: str, arguments: argparse.Namespace, situation: Situation) -> dict[str, Any]:
    return _nccl_settings(arguments, situation) if kind == "nccl" else _training_settings(arguments)


def subject_for(kind: str, settings: Mapping[str, Any], situation: Situation) -> Subject:
    return nccl_subject(settings, situation) if kind == "nccl" else training_subject(kind, settings, situation)


def _nccl_settings(arguments: argparse.Namespace, situation: Situation) -> dict[str, Any]:
    if arguments.recording and arguments.messages:
        raise UsageError("--recording and --messages both say what to measure: give one")
    profile = (
        of_recording([arguments.recording])
        if arguments.recording
        else parse_messages(arguments.messages or "all_reduce:64M")
    )
    environ = situation.environment if situation.environment_known else os.environ
    version = ".".join(map(str, situation.nccl_version or TABLE_VERSION))
    return {
        **settings_of(profile),
        "command": (arguments.nccl_command if arguments.what == "all" else arguments.template) or "",
        "deadline": arguments.deadline,
        "current": {name: value for name, value in environ.items() if name.startswith("NCCL_") and may_be_shown(name)},
        "nccl_version": arguments.nccl_version or version,
        "transport": arguments.transport,
        "nodes": arguments.nodes,
        "local_ranks": arguments.local_ranks,
        "nics": arguments.nics,
        "compute_capability": arguments.compute_capability,
        "nvlink_switch": arguments.nvlink_switch,
        "added": _added(arguments.add),
        "left_out": list(arguments.leave_out),
    }


def _added(words: list[str]) -> dict[str, list[str]]:
    found = {}
    for word in words:
        name, separator, values = word.partition("=")
        if not separator or not values:
            raise UsageError(f"--add {word!r}: give NAME=VALUE,VALUE")
        found[name] = values.split(",")
    return found


def _training_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    if not arguments.config or not arguments.template:
        raise UsageError("give --config FILE, and --command 'LAUNCHER ... TRAINING ... {config}'")
    document = GivenFiles([arguments.config]).document(arguments.config)
    if not is_deepspeed_config(document):
        raise UsageError(f"{arguments.config} is no DeepSpeed configuration")
    problems = find_problems(document, arguments.ranks or arguments.gpus)
    if problems:
        raise UsageError(f"{arguments.config}: {problems[0]}")
    return {
        "command": arguments.template,
        "config": document,
        "ranks": arguments.ranks or arguments.gpus,
        "deadline": arguments.deadline,
        "parameters": arguments.parameters,
        "gpu_memory": arguments.gpu_memory,
        "bus_bandwidth": arguments.bus_bandwidth,
        "nodes": arguments.nodes,
        "environment": {},
        "reduce_scatter": os.environ.get(ENV_REDUCE_SCATTER, "") not in ("", "0"),
    }
