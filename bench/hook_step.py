"""Where the time goes that the hooks add to a whole step of plain torch, part by part, in one process.

The cases take turns, in random order, for a few steps each: a machine whose speed changes then slows all alike. A
figure is the median step of a case's turn less that of the bare turn of the same round. hook_peers.py has the whole in
processes of their own.
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed
from common.figures import Figure, quartiles, show
from common.scratch import scratch
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter
from trainings.small_training import WIDTH

TURN = 10  # steps of a case that are timed, one after the other
SETTLE = 2  # before them: Python adapts its code to what stands in the hooks' places

clock = time.perf_counter_ns


class Places(NamedTuple):
    """What stands where the hooks of a step do."""

    read: Any
    call: Any
    backward: Any
    before: dict[int, Any]
    after: dict[int, Any]

    @classmethod
    def now(cls) -> Places:
        return cls(
            _BaseDataLoaderIter.__next__,
            vars(torch.nn.Sequential).get("__call__"),
            torch.autograd.backward,
            dict(optimizers._global_optimizer_pre_hooks),
            dict(optimizers._global_optimizer_post_hooks),
        )

    def put(self) -> None:
        _BaseDataLoaderIter.__next__ = self.read  # type: ignore[method-assign]
        if self.call is not None:
            torch.nn.Sequential.__call__ = self.call  # type: ignore[method-assign]
        elif "__call__" in vars(torch.nn.Sequential):
            del torch.nn.Sequential.__call__
        torch.autograd.backward = self.backward
        for hooks, kept in (
            (optimizers._global_optimizer_pre_hooks, self.before),
            (optimizers._global_optimizer_post_hooks, self.after),
        ):
            hooks.clear()
            hooks.update(kept)


class IdleRecorder:
    """A recorder that does nothing, in the place of laggard's."""

    depth = entered_at = 0
    worked = step_will_end = False

    def enter(self, phase: int, work: int = 0) -> None: ...

    def leave(self) -> None: ...

    def optimizer_updated(self) -> bool:
        return True


def pass_through() -> None:
    """The five functions that are needed to stand in these places, and nothing in them."""

    def next_batch(iterator: Any, original: Any = _BaseDataLoaderIter.__next__) -> Any:
        return original(iterator)

    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        return torch.nn.Module.__call__(module, *args, **kwargs)

    def nothing(optimizer: Any, args: Any, kwargs: Any) -> None:
        return None

    _put_functions(next_batch, call, functools.partial(_backward, torch.autograd.backward), nothing, nothing)


def clock_and_append() -> None:
    """The least that a recorder must do: at each of the eight ends of the four phases a clock is read and kept."""
    kept: list[int] = []
    read_batch, backward = _BaseDataLoaderIter.__next__, torch.autograd.backward

    def next_batch(iterator: Any) -> Any:
        kept.append(clock())
        try:
            return read_batch(iterator)
        finally:
            kept.append(clock())

    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        kept.append(clock())
        try:
            return torch.nn.Module.__call__(module, *args, **kwargs)
        finally:
            kept.append(clock())

    def recorded_backward(*args: Any, **kwargs: Any) -> Any:
        kept.append(clock())
        try:
            return backward(*args, **kwargs)
        finally:
            kept.append(clock())

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        kept.append(clock())

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        kept.append(clock())
        if len(kept) > 1 << 16:
            kept.clear()

    _put_functions(next_batch, call, recorded_backward, before, after)


def _backward(original: Any, *args: Any, **kwargs: Any) -> Any:
    return original(*args, **kwargs)


def _put_functions(read: Any, call: Any, backward: Any, before: Any, after: Any) -> None:
    _BaseDataLoaderIter.__next__ = read  # type: ignore[method-assign]
    torch.nn.Sequential.__call__ = call  # type: ignore[method-assign]
    torch.autograd.backward = backward
    optimizers.register_optimizer_step_pre_hook(before)
    optimizers.register_optimizer_step_post_hook(after)


def idle_hooks(model: torch.nn.Module) -> None:
    """laggard's own hooks, with a recorder that does nothing."""
    from laggard.trainer_hooks.pytorch.forward import TorchForward, hook
    from laggard.trainer_hooks.pytorch.training import TorchSteps

    recorder: Any = IdleRecorder()
    steps = TorchSteps(recorder)
    steps.claim_training_thread()
    forward = TorchForward(recorder, steps)
    hook(forward)
    steps.hook()
    forward.watch(model)


def hooks(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """All of laggard: the rank file and the thread beside the training, too."""
    import laggard.trainer_hooks

    laggard.trainer_hooks.attach(model, optimizer)


class Training:
    """The training loop of small_training.py, for a few steps at a time."""

    def __init__(self, steps: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(2)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self._batches = iter(DataLoader(TensorDataset(torch.randn(steps * 4, WIDTH)), batch_size=4))

    def run(self, steps: int) -> float:
        """The median step, in microseconds."""
        times, ended = [], clock()
        for _ in range(steps):
            batch = next(self._batches)
            self.optimizer.zero_grad()
            self.model(batch[0]).square().mean().backward()
            self.optimizer.step()
            now = clock()
            times.append((now - ended) / 1e3)
            ended = now
        return statistics.median(times)


def compare(rounds: int) -> list[Figure]:
    """The medians and quartiles of the cases over the rounds."""
    training = Training((rounds + 8) * 5 * (TURN + SETTLE))
    bare = Places.now()
    ways: dict[str, Callable[[], None]] = {
        "functions that do nothing in the hooks' places": pass_through,
        "a recorder that reads a clock and keeps it, 8 times": clock_and_append,
        "the hooks, with a recorder that does nothing": functools.partial(idle_hooks, training.model),
        "the hooks": functools.partial(hooks, training.model, training.optimizer),
    }
    cases = {"bare": bare}
    for name, put_in in ways.items():
        bare.put()
        put_in()
        cases[name] = Places.now()
    steps: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds + 5):
        for name in random.sample(list(cases), len(cases)):
            cases[name].put()
            training.run(SETTLE)
            median = training.run(TURN)
            if number >= 5:
                steps[name].append(median)
    bare.put()
    rows = [quartiles("a step, bare", steps["bare"], "us")]
    for name in ways:
        added = [case - without for case, without in zip(steps[name], steps["bare"], strict=True)]
        rows.append(quartiles(f"added by {name}", added, "us"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1500)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=scratch()) as folder:
        os.environ["LAGGARD_RANK_DIR"] = folder
        show("What the parts of the hooks cost a training step (one process, CPU)", compare(options.rounds))


if __name__ == "__main__":
    main()
