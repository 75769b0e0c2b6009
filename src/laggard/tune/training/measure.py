"""One DeepSpeed configuration measured: the user's training runs for some steps under `laggard run`, and its recording
says how long a step took."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from laggard.environment import ENV_REDUCE_SCATTER
from laggard.errors import UsageError
from laggard.recording.reader import read_recording
from laggard.tune.outcome import Outcome, Status
from laggard.tune.space import Configuration
from laggard.tune.training.space import Training, batch_keys, with_settings
from laggard.tune.trial.failure import failure_of
from laggard.tune.trial.process import Ended, run_command
from laggard.tune.trial.template import fill

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
