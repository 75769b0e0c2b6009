"""What a rank does between steps: checkpoints, logs and evaluations, as the case has them."""

from __future__ import annotations

import io
import logging
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from workload import faults, plan
from workload.data import batch

EVERY = 20
CHECKPOINT_SECONDS = 0.15
LOG_SECONDS = 0.012
EVALUATION_BATCHES = 6

LOGGER = logging.getLogger("training")


class _SlowStorage(io.FileIO):
    """A file on storage that takes a while to take it."""

    def close(self) -> None:
        if not self.closed:
            time.sleep(CHECKPOINT_SECONDS)
        super().close()


class _SlowServer(logging.Handler):
    """Sends each line to a server that keeps metrics, and waits for its answer."""

    def emit(self, record: logging.LogRecord) -> None:
        time.sleep(LOG_SECONDS)


def after_step(
    model: torch.nn.Module,
    state: Callable[[], Any] | None = None,
    evaluate: Callable[[], Any] | None = None,
    spread: bool = False,
) -> None:
    """What comes after each step. `state` returns what a checkpoint has, `evaluate` evaluates the model once; without
    them that is the model's own state and a batch. `spread`: the model is spread over the ranks, so that each of them
    takes part in both, and rank 0 alone writes and scores."""
    faults.after_step()
    plan.step += 1
    takes_part = spread or plan.rank() == 0
    if plan.CASE == "logging" and plan.rank() == 0:
        _log()
    elif plan.CASE == "checkpoint" and plan.step % EVERY == 0 and takes_part:
        _save((state or model.state_dict)())
    elif plan.CASE == "evaluation" and plan.step % EVERY == 0 and takes_part:
        _evaluate(model, evaluate)
        if spread and plan.rank() == 0:
            time.sleep(CHECKPOINT_SECONDS)  # the scores of what all ranks have computed


def _log() -> None:
    if not LOGGER.handlers:
        LOGGER.setLevel(logging.INFO)
        LOGGER.propagate = False
        LOGGER.addHandler(_SlowServer())
    LOGGER.info("step %d", plan.step)


def _save(values: Any) -> None:
    if plan.rank() == 0:
        with tempfile.TemporaryDirectory() as folder, _SlowStorage(os.path.join(folder, "state.pt"), "w") as file:
            torch.save(values, file)


def _evaluate(model: torch.nn.Module, evaluate: Callable[[], Any] | None) -> None:
    model.eval()
    with torch.no_grad():
        for number in range(EVALUATION_BATCHES):
            evaluate() if evaluate is not None else model(batch(number))
    model.train()
