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
) -> None:
    """What comes after each step. `state` and `evaluate`, where given, are for a model that is spread over the ranks:
    each rank calls them, and rank 0 alone writes and scores."""
    faults.after_step()
    plan.step += 1
    if plan.CASE == "logging" and plan.rank() == 0:
        _log()
    elif plan.CASE == "checkpoint" and plan.step % EVERY == 0:
        _save(state or model.state_dict, on_all=state is not None)
    elif plan.CASE == "evaluation" and plan.step % EVERY == 0:
        _evaluate(model, evaluate)


def _log() -> None:
    if not LOGGER.handlers:
        LOGGER.setLevel(logging.INFO)
        LOGGER.propagate = False
        LOGGER.addHandler(_SlowServer())
    LOGGER.info("step %d", plan.step)


def _save(state: Callable[[], Any], on_all: bool) -> None:
    values = state() if on_all or plan.rank() == 0 else None
    if plan.rank() == 0:
        with tempfile.TemporaryDirectory() as folder, _SlowStorage(os.path.join(folder, "state.pt"), "w") as file:
            torch.save(values, file)


def _evaluate(model: torch.nn.Module, evaluate: Callable[[], Any] | None) -> None:
    if evaluate is None and plan.rank() != 0:
        return
    model.eval()
    with torch.no_grad():
        for number in range(EVALUATION_BATCHES):
            evaluate() if evaluate is not None else model(batch(number))
    model.train()
    if evaluate is not None and plan.rank() == 0:
        time.sleep(CHECKPOINT_SECONDS)  # the scores of what all ranks have computed
