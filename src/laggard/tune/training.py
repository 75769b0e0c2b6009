"""A DeepSpeed training as something to tune: ZeRO's stage and the micro-batch at a constant global batch, and the
switches of its communication.

A configuration is measured by the user's training itself: it runs for some steps under `laggard run`, and its recording
says how long a step took. Names and defaults are those of DeepSpeed 0.19 (deepspeed/runtime/zero/config.py). Switches
that a stage does not read are left out.
"""

from __future__ import annotations

import copy
import json
import math
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from laggard.deepspeed_config import parse_config
from laggard.kit.environment import ENV_REDUCE_SCATTER
from laggard.kit.errors import UsageError
from laggard.recommend.advice.situation import Situation
from laggard.recommend.zero import MemoryPlan, Network, free_bytes, stage_seconds
from laggard.recording.reader import read_recording
from laggard.tune.campaign import Change, Subject
from laggard.tune.plan import (
    Configuration,
    Constraint,
    Outcome,
    Parameter,
    Settings,
    Space,
    Status,
    allowed,
    check_space,
)
from laggard.tune.trial import Ended, failure_of, fill, parse_command, run_command

_STAGES: Final = (0, 1, 2, 3)
_BUCKETS: Final = (5_000_000, 50_000_000, 100_000_000, 200_000_000, 500_000_000, 1_000_000_000)
"""Elements, around DeepSpeed's default of 5e8; small models have smaller ones."""
_MAX_STARTS: Final = 3


class Training(NamedTuple):
    document: Mapping[str, Any]
    """The DeepSpeed configuration."""
    ranks: int
    """The ranks that share a batch."""
    parameters: float | None = None
    gpu_bytes: float | None = None
    bus_bandwidth: float | None = None
    """Bytes per second, as nccl-tests has busbw."""
    nodes: int = 1
    reduce_scatter: bool = False
    """True where the job has LAGGARD_REDUCE_SCATTER now."""


def global_batch(training: Training) -> int:
    """Returns the samples of an optimizer step. Raises UsageError where the configuration does not say."""
    own = parse_config(training.document)
    if own.micro_batch is None:
        raise UsageError("the DeepSpeed configuration lacks train_micro_batch_size_per_gpu: it is the default to beat")
    if own.grad_accum is None and own.train_batch is None:
        raise UsageError("the DeepSpeed configuration lacks gradient_accumulation_steps and train_batch_size: give one")
    whole = own.train_batch or own.micro_batch * (own.grad_accum or 1) * training.ranks
    if whole % (own.micro_batch * training.ranks):
        raise UsageError(
            f"a global batch of {whole} is no multiple of micro-batch {own.micro_batch} times {training.ranks} ranks"
        )
    return whole


def zero_space(training: Training) -> Space:
    own = parse_config(training.document)
    share = global_batch(training) // training.ranks
    sizes = tuple(size for size in range(1, share + 1) if share % size == 0 and size.bit_count() == 1) or (1,)
    sizes = tuple(sorted({*sizes, own.micro_batch or 1}))
    constraints = []
    if training.parameters and training.gpu_bytes:
        plan = MemoryPlan(training.parameters, training.ranks, training.gpu_bytes)
        constraints = [
            Constraint("weights, gradients and optimizer states fit", lambda each: free_bytes(_stage(each), plan) > 0)
        ]
    parameters = (Parameter("stage", _STAGES, own.stage), Parameter("micro_batch", sizes, own.micro_batch))
    return Space(parameters, tuple(constraints), _needs_as_much)


def zero_starts(training: Training, space: Space) -> tuple[Settings, ...]:
    """Returns what volumes and bandwidth let one expect to communicate least; empty where they are not known."""
    if not training.parameters or not training.bus_bandwidth:
        return ()
    network = Network(training.ranks, training.bus_bandwidth, nodes=training.nodes)
    share = global_batch(training) // training.ranks
    rows: list[tuple[float, int, int]] = []
    for parameter in space.parameters[1:]:
        for micro in map(int, (each for each in parameter.choices if isinstance(each, int))):
            for stage in _STAGES:
                if allowed(space, {"stage": stage, "micro_batch": micro}):
                    rows.append((stage_seconds(stage, training.parameters, share // micro, network), stage, micro))
    return tuple({"stage": stage, "micro_batch": micro} for _, stage, micro in sorted(rows)[:_MAX_STARTS])


def switch_space(training: Training) -> Space:
    """Returns the switches that the configuration's stage reads."""
    own = parse_config(training.document)
    if own.stage == 0:
        raise UsageError("the DeepSpeed configuration has stage 0, which reads none of ZeRO's switches: give another")
    zero = training.document.get("zero_optimization", {})
    buckets = _around(own.reduce_bucket_size, training.parameters)
    found = [
        Parameter("overlap_comm", (False, True), own.overlap_comm, "switches"),
        Parameter("reduce_bucket_size", buckets, own.reduce_bucket_size, "buckets"),
        Parameter("contiguous_gradients", (False, True), own.contiguous_gradients, "switches"),
    ]
    if own.stage in (1, 2):
        round_robin = bool(zero.get("round_robin_gradients", False))
        gathers = _around(own.allgather_bucket_size, training.parameters)
        found += [
            Parameter("use_multi_rank_bucket_allreduce", (False, True), own.multi_rank_bucket_allreduce, "switches"),
            Parameter("allgather_bucket_size", gathers, own.allgather_bucket_size, "buckets"),
            Parameter("round_robin_gradients", (False, True), round_robin, "switches"),
        ]
        if own.reduce_scatter:
            found.append(_reduce_scatter(training.reduce_scatter))
    else:
        prefetch = own.prefetch_bucket_size
        found += [Parameter("stage3_prefetch_bucket_size", _around(prefetch, None), prefetch, "buckets")]
    return Space(tuple(found))


def _reduce_scatter(now: bool) -> Parameter:
    """The hooks' true reduce-scatter, which takes what these two switches decide."""
    needs = (("use_multi_rank_bucket_allreduce", (True,)), ("contiguous_gradients", (True,)))
    return Parameter(ENV_REDUCE_SCATTER, (None, "1"), "1" if now else None, "switches", needs)


def with_settings(training: Training, configuration: Configuration) -> dict[str, Any]:
    """Returns the DeepSpeed configuration with these settings, at the same global batch."""
    after = copy.deepcopy(dict(training.document))
    zero = dict(after.get("zero_optimization", {}))
    for name, value in configuration.items():
        if name == "micro_batch":
            after |= batch_keys(training, int(str(value)))
        elif name != ENV_REDUCE_SCATTER:
            zero[name] = value
    after["zero_optimization"] = zero
    return after


def batch_keys(training: Training, micro: int) -> dict[str, int]:
    whole = global_batch(training)
    return {
        "train_batch_size": whole,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": whole // (micro * training.ranks),
    }


def _around(current: int, parameters: float | None) -> tuple[int, ...]:
    """Returns the buckets to try. What is larger than the model is one bucket: only the smallest such counts."""
    useful = [each for each in _BUCKETS if parameters is None or each < 2 * parameters] or [_BUCKETS[0]]
    return tuple(sorted({*useful, current}))


def _stage(configuration: Configuration) -> int:
    return int(str(configuration["stage"]))


def _needs_as_much(one: Configuration, other: Configuration) -> bool:
    micro = [int(str(each["micro_batch"])) for each in (one, other)]
    return _stage(one) <= _stage(other) and micro[0] >= micro[1]


NAMES: Final = ("config", "recording", "stage", "micro_batch", "accumulation", "python")
WARM_UP_STEPS: Final = 2
_MIN_STEPS: Final = 3
_LOSS: Final = re.compile(r"\bloss\b[\"']?\s*[:= ]\s*([-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf))", re.IGNORECASE)
_LOSS_TOLERANCE: Final = 0.05
"""The tolerance of the last loss against the default's: another order of sums changes it by far less, a wrong reduction
by more."""
_REFERENCE: Final = "default-loss"


class TrainingRunner(NamedTuple):
    words: tuple[str, ...]
    training: Training
    default: Configuration
    deadline_seconds: float
    environ: Mapping[str, str]

    def measure(self, configuration: Configuration, folder: Path) -> Outcome:
        """Returns the median time of a step, of its slowest rank, after two steps of warm-up."""
        recording, path = folder / "recording", folder / "ds_config.json"
        document = with_settings(self.training, configuration)
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        words = self._command(configuration, path, recording)
        try:
            ended = run_command(words, self._environ(configuration), Path.cwd(), self.deadline_seconds)
        except OSError as error:
            return Outcome(Status.CRASHED, None, f"{words[0]} cannot be started: {error.strerror}")
        (folder / "output").write_text(ended.output + ended.errors, encoding="utf-8", errors="replace")
        return failure_of(ended) or self._judge(configuration, ended, recording)

    def _environ(self, configuration: Configuration) -> Mapping[str, str]:
        if ENV_REDUCE_SCATTER not in configuration:
            return self.environ
        return {**self.environ, ENV_REDUCE_SCATTER: "1" if configuration[ENV_REDUCE_SCATTER] else "0"}

    def _command(self, configuration: Configuration, path: Path, recording: Path) -> list[str]:
        micro = configuration.get("micro_batch", self.training.document.get("train_micro_batch_size_per_gpu", 1))
        keys = batch_keys(self.training, int(str(micro)))
        zero = self.training.document.get("zero_optimization", {})
        words = fill(
            self.words,
            {
                "config": str(path.absolute()),
                "recording": str(recording.absolute()),
                "stage": str(configuration.get("stage", zero.get("stage", 0))),
                "micro_batch": str(micro),
                "accumulation": str(keys["gradient_accumulation_steps"]),
                "python": sys.executable,
            },
        )
        if any("{recording}" in word for word in self.words):
            return words
        return [sys.executable, "-m", "laggard", "run", "--record", str(recording.absolute()), *words]

    def _judge(self, configuration: Configuration, ended: Ended, recording: Path) -> Outcome:
        wrong = self._wrong_loss(configuration, ended, recording.parent.parent / _REFERENCE)
        if wrong:
            return Outcome(Status.WRONG, None, wrong)
        try:
            seconds = step_seconds(recording)
        except UsageError as error:
            return Outcome(Status.GARBAGE, None, str(error)[:160])
        if seconds is None:
            return Outcome(Status.GARBAGE, None, f"fewer than {_MIN_STEPS} steps after {WARM_UP_STEPS} of warm-up")
        return Outcome(Status.OK, seconds)

    def _wrong_loss(self, configuration: Configuration, ended: Ended, reference: Path) -> str:
        """Returns what is wrong with the last loss that was printed; empty: nothing, or none was printed."""
        found = _LOSS.findall(f"{ended.output}\n{ended.errors}")
        if not found:
            return ""
        loss = float(found[-1])
        if not math.isfinite(loss):
            return f"the loss is {found[-1]}"
        if not reference.exists():
            if configuration == self.default:
                reference.write_text(found[-1])
            return ""
        expected = float(reference.read_text())
        if abs(loss - expected) > _LOSS_TOLERANCE * max(abs(expected), 1e-6):
            return f"the last loss is {loss:g}, the default's {expected:g}"
        return ""


def step_seconds(recording: Path) -> float | None:
    """Returns the median time of a step of its slowest rank; None where there are too few. Raises UsageError."""
    seconds = read_recording([recording]).timings.step_seconds
    complete = np.isfinite(seconds).all(axis=1)
    steps = seconds[complete].max(axis=1)[WARM_UP_STEPS:]
    return float(np.median(steps)) if len(steps) >= _MIN_STEPS else None


def own_environment() -> dict[str, str]:
    return dict(os.environ)


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
