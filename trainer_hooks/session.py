"""What one training process has of laggard: its recorder, the hooks that feed it, and the places that it writes to."""

from __future__ import annotations

import atexit
import functools
import logging
import os
import sys
from collections.abc import Callable, Mapping
from threading import get_ident
from typing import Any

from laggard.environment import ENV_HOST_CLOCK
from laggard.trainer_hooks.collectives import process_group as collectives
from laggard.trainer_hooks.collectives.groups import Groups, sharding_groups
from laggard.trainer_hooks.collectives.native import Unseen
from laggard.trainer_hooks.output.identity import identify
from laggard.trainer_hooks.output.open_outputs import open_outputs
from laggard.trainer_hooks.pytorch import dataloader as input_pipeline
from laggard.trainer_hooks.pytorch.ddp import Reducers
from laggard.trainer_hooks.pytorch.forward import TorchForward
from laggard.trainer_hooks.pytorch.training import TorchSteps
from laggard.trainer_hooks.record.device_timer import DeviceTimer
from laggard.trainer_hooks.record.recorder import FindDevice, Recorder, clock
from laggard.trainer_hooks.steps.engine_steps import EngineSteps
from laggard.trainer_hooks.steps.periodic_steps import PeriodicSteps

log = logging.getLogger("laggard")


class Session:
    """Made once the process has torch. It writes nothing before it knows its rank: the first collective is made, a step
    is done, or somebody says so."""

    def __init__(self) -> None:
        self.recorder = Recorder([], find_device=device_finder(os.environ))
        self.groups = Groups(self.open)
        self.unseen = Unseen(self.recorder, self.groups)
        self.reducers = Reducers(self.recorder, self.groups, self.unseen)
        self.recorder.set_native_check(self._look)
        self.steps = TorchSteps(self.recorder)
        self.engines = EngineSteps(self.recorder)
        self.forward = TorchForward(self.recorder, self.steps)
        self._opened = False
        self._forked = False
        self._closes = False
        os.register_at_fork(after_in_child=self._in_child)

    def hook(self) -> None:
        """Puts the hooks into torch. What this build of torch lacks has none."""
        import torch

        input_pipeline.hook(self.recorder)
        self.steps.hook()
        if torch.distributed.is_available():
            self.unseen.begin()
            collectives.hook(torch.distributed, self.recorder, self.groups)
            _before(torch.distributed, "destroy_process_group", self._groups_end)
            torch.distributed._broadcast_coalesced = self._blocking(  # type: ignore[attr-defined]
                torch.distributed._broadcast_coalesced  # type: ignore[attr-defined]
            )
            ddp = torch.nn.parallel.DistributedDataParallel
            _after(ddp, "__init__", self.watch_ddp)
            self.forward.hook(ddp, self._met_ddp)

    def open(self) -> None:
        """The rank is known: from here on there is something to write to."""
        if not self._opened:
            self._opened = True
            self._close_at_exit()
            self.recorder.add_sinks([PeriodicSteps(self.recorder.add_step)])
            open_outputs(self.recorder, identify(os.environ))

    def _close_at_exit(self) -> None:
        if not self._closes:
            self._closes = True
            atexit.register(self.recorder.close)
            atexit.register(self._settle)  # called before that: last in, first out

    def watch_ddp(self, module: Any) -> None:
        """A DistributedDataParallel module: its group is data-parallel, its forward pass is the script's."""
        self.steps.train_here()
        self.groups.learn_group("dp", module.process_group)
        self.unseen.settle()  # what its construction made
        self.reducers.add(module)
        self.steps.after_backward = self.reducers.after_backward
        self.forward.watch(module)

    def watch_module(self, module: Any) -> None:
        """A module that is trained. FSDP shards over data-parallel ranks."""
        self.steps.train_here()
        groups = {id(group): group for part in module.modules() for group in sharding_groups(part)}
        for group in groups.values():
            self.groups.learn_group("dp", group)
        self.forward.watch(module)

    def _met_ddp(self, module: Any) -> None:
        """A DDP module that was made before the hooks: its first forward pass begins."""
        self.forward.watch(module)  # whatever comes of the rest, once is enough
        harmless(self.watch_ddp, module)

    def _look(self) -> bool:
        """Adds what C++ did in the step that ends, and says whether there was anything."""
        try:
            if not self._opened and not self._forked:
                self.open()
            return self.unseen.settle() > 0
        except Exception:
            self.recorder.totals.errors += 1
            return True

    def _groups_end(self) -> None:
        """Process groups are about to go: what passed in them since the last look is asked for while it can be."""
        self._settle()
        self._forget_groups()

    def _settle(self) -> None:
        if self._forked or get_ident() != self.steps.thread:
            return
        try:
            self.unseen.settle()
        except Exception:
            self.recorder.totals.errors += 1

    def _forget_groups(self) -> None:
        self.groups.forget()
        self.unseen.forget()

    def _blocking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """DDP's broadcast of its buffers: one call into C++ that comes back when all of them are there."""

        @functools.wraps(original)
        def broadcast(group: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
            device, began = self.recorder.live.device, clock()
            before = device.mark() if device is not None else None
            result = original(group, tensors, *args, **kwargs)
            try:
                end = clock()
                if device is None:
                    self.recorder.ended_on_host(self.unseen.take(group, began, _place_of(tensors)), end, end - began)
                else:
                    after = device.mark() if device.carries(tensors, group) else None
                    device.passed(self.unseen.take(group, began, _place_of(tensors)), before, after)
            except Exception:
                self.recorder.totals.errors += 1
            return result

        return broadcast

    def _in_child(self) -> None:
        """A forked child is not the rank. It has a file of its own only where it makes collectives itself."""
        self.recorder.disable_after_fork()
        self._forget_groups()
        self._opened, self._forked = False, True


def device_finder(environ: Mapping[str, str]) -> FindDevice | None:
    """Finds the CUDA device that the process computes on. None where LAGGARD_HOST_CLOCK=1 asks for the host's clock."""
    return None if environ.get(ENV_HOST_CLOCK, "") == "1" else _find_cuda


def _find_cuda(recorder: Recorder) -> DeviceTimer | None:
    """Only once torch has started CUDA itself."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    from laggard.trainer_hooks.device import cuda

    return cuda.take(recorder)


def _place_of(tensors: Any) -> tuple[int, int]:
    """Tells one broadcast of buffers from another."""
    return tensors[0].data_ptr(), sum(each.nbytes for each in tensors)


def _before(owner: Any, name: str, act: Callable[[], None]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        act()
        return original(*args, **kwargs)

    setattr(owner, name, function)


def _after(owner: Any, name: str, act: Callable[[Any], None]) -> None:
    """After the method of a class, act(self). Whatever act raises is told and goes no further."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        harmless(act, self)
        return result

    setattr(owner, name, method)


def harmless(act: Callable[..., None], *args: Any) -> None:
    """Acts; an error is told in one line, and the training goes on."""
    try:
        act(*args)
    except Exception as error:
        log.warning("laggard: not hooked, the training goes on without it: %s: %s", type(error).__name__, error)
