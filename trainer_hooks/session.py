"""The parts of laggard in one training process: its recorder, the hooks that feed it, and the outputs that it writes
to."""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections.abc import Callable, Mapping
from threading import get_ident
from typing import Any, Final

from laggard.kit.environment import ENV_ANSWER, ENV_HOST_CLOCK, ENV_RANK_PROCESS
from laggard.rankfile.fact_names import ENDING, GPU, UNSEEN_WAITS
from laggard.trainer_hooks.collectives import process_group
from laggard.trainer_hooks.collectives.groups import FunctionalWaits, ProcessGroups, hook_ends, sharding_groups
from laggard.trainer_hooks.collectives.native import NativeCollectives
from laggard.trainer_hooks.device.gpu import GraphCaptures, Placement, gpu_uuid
from laggard.trainer_hooks.output.open_outputs import open_outputs
from laggard.trainer_hooks.output.recording_folder import identify, tell_answer
from laggard.trainer_hooks.output.witness import WITNESS, StartWatch
from laggard.trainer_hooks.pytorch import forward as dataloader
from laggard.trainer_hooks.pytorch.ddp import Reducers, StepDigests, digest_steps, hook_buffer_broadcasts
from laggard.trainer_hooks.pytorch.forward import TorchForward
from laggard.trainer_hooks.pytorch.training import TorchSteps, trained_modules
from laggard.trainer_hooks.record.ending import (
    DIGEST_LOG,
    FACTS,
    forget_calls,
    note_departure,
    note_present_ending,
    watch_exceptions,
)
from laggard.trainer_hooks.record.recorder import FindDevice, Recorder
from laggard.trainer_hooks.stacks.watch import StackWatch
from laggard.trainer_hooks.steps import EngineSteps, LoopSteps, PeriodicSteps
from laggard.trainer_hooks.wrapping import after_import, call_after, suppress_errors


class Session:
    """Made once the process has torch. It writes nothing before its rank is known: with the first collective, at the
    end of the first step, or when open() is called."""

    def __init__(self) -> None:
        self.placement = Placement()
        self.captures = GraphCaptures()
        finder = device_finder(os.environ, self.placement, self.captures)
        self.recorder = Recorder([], find_device=finder)
        self.groups = ProcessGroups(self.open)
        self.waits = FunctionalWaits(self.recorder, FACTS, lambda: self.steps.thread)
        self.native = NativeCollectives(self.recorder, self.groups, captures=self.captures, waits=self.waits)
        self.reducers = Reducers(self.recorder, self.groups, self.native)
        self.recorder.set_native_check(self._record_native_at_step_end)
        self.steps = TorchSteps(self.recorder, self._saw_optimizer)
        self.engines = EngineSteps(self.recorder)
        self.loop = LoopSteps(self.recorder)
        self.forward = TorchForward(self.recorder, self.steps)
        self.digests: StepDigests | None = None
        if every := digest_steps(os.environ):
            self.digests = StepDigests(every, DIGEST_LOG, self.captures)
            self.digests.begin(self.recorder, self.forward.watched_modules)
        self._recorded: str | None = None  # the folder of the recording of rank 0
        self.is_hooked = False  # in torch: a loop of another kind needs none
        self._sought_modules = False
        self._begin()
        os.register_at_fork(after_in_child=self._after_fork_in_child)

    def _begin(self, forked_at: int | None = None) -> None:
        """Nothing of this process was recorded yet. `forked_at`: the step in which it was forked, where it was."""
        self.stacks: StackWatch | None = None
        self._start: StartWatch | None = None
        self._opened = False
        self._closes_at_exit = False
        self._end_is_told = False
        self._had_groups = False  # torch.distributed was initialized
        self._had_rpc = False
        self._forked, self._forked_at = forked_at is not None, forked_at or 0

    def hook(self) -> None:
        """Puts the hooks into torch. What this build of torch lacks is left out."""
        import torch

        self.is_hooked = True
        dataloader.hook(self.forward)
        self.captures.hook(torch)
        self.steps.hook()
        if torch.distributed.is_available():
            self.native.start()
            process_group.hook(torch.distributed, self.recorder, self.groups)
            after_import("torch.distributed._functional_collectives", self.waits.hook)
            after_import("torch.distributed.rpc", lambda rpc: call_after(rpc, "init_rpc", self._rpc_began))
            hook_ends(torch.distributed, self._before_group_ends)
            hook_buffer_broadcasts(torch.distributed, self.recorder, self.native)
            ddp = torch.nn.parallel.DistributedDataParallel
            call_after(ddp, "__init__", lambda _, module, /, *__, **___: self.watch_ddp(module))
            self.forward.hook(ddp, self._first_forward_of_ddp)

    def begin_loop_step(self) -> None:
        """A loop that says so itself begins a step: from here on no optimizer ends steps."""
        self.steps.claim_training_thread()
        self.steps.ends_steps = False
        self.loop.begin(bare=not self.is_hooked)

    def abandon(self) -> None:
        """Records nothing, because not all hooks got into torch: what the others tell would pass for the whole."""
        self._opened = True

    def open(self) -> None:
        """The rank is known: opens the outputs."""
        if not self._opened:
            self._opened = True
            os.environ[ENV_RANK_PROCESS] = str(os.getpid())
            self._close_at_exit()
            self._end_start()
            WITNESS.seen()
            self.recorder.add_sinks([PeriodicSteps(self.recorder.add_step, self.steps.are_expected)])
            identity = identify(os.environ, gpu_uuid(self.placement.find()))
            if self.loop.is_bare and identity.world_size > 1:
                FACTS.set(UNSEEN_WAITS, True)  # the loop's own library waits for the others, where no hook sees it
            self.stacks, recorded = open_outputs(self.recorder, identity, lambda: self.steps.thread)
            self._recorded = recorded if identity.rank == 0 else None

    def _close_at_exit(self) -> None:
        if not self._closes_at_exit:
            self._closes_at_exit = True
            watch_exceptions()
            atexit.register(self._close)
            call_at_end_of_multiprocessing_child(self._close_child)

    def _close_child(self) -> None:
        note_present_ending()
        self._close()

    def _close(self) -> None:
        self._record_native()
        if self.digests is not None:
            suppress_errors(self.digests.close)
        suppress_errors(self.native.close)
        if self.stacks is not None:
            suppress_errors(self.stacks.close)
        self.recorder.close()
        if self._recorded is not None and os.environ.get(ENV_ANSWER) == "1":
            suppress_errors(tell_answer, self._recorded)

    def _is_helper(self) -> bool:
        """Whether this process was started beside a rank, as a worker of its DataLoader is. It becomes a rank, with a
        rank file of its own, only where it makes collectives itself."""
        if self._forked or _is_beside_a_rank():
            return True
        process = sys.modules.get("multiprocessing.process")
        return process is not None and process.parent_process() is not None

    def watch_ddp(self, module: Any) -> None:
        """Watches a DistributedDataParallel module: its group is data-parallel, its forward pass is the script's."""
        self.steps.claim_training_thread()
        self.placement.saw(module.parameters())
        self.groups.set_role("dp", module.process_group)
        self.native.record_new()  # what its construction made
        self.reducers.add(module)
        self.steps.after_backward = self.reducers.after_backward
        self.forward.watch(module)

    def watch_module(self, module: Any) -> None:
        """Watches a module that is trained. FSDP shards over data-parallel ranks."""
        self.steps.claim_training_thread()
        self.placement.saw(module.parameters())
        groups = {id(group): group for part in module.modules() for group in sharding_groups(part)}
        for group in groups.values():
            self.groups.set_role("dp", group)
        self.forward.watch(module)

    def _saw_optimizer(self, optimizer: Any) -> None:
        """`optimizer` has updated. Where no module is watched by then, those that it trains are."""
        self.placement.saw_optimizer(optimizer)
        if not (self._sought_modules or self.forward.watched) and self.is_hooked and self.steps.ends_steps:
            self._sought_modules = True
            for module in trained_modules(optimizer):
                self.watch_module(module)

    def _first_forward_of_ddp(self, module: Any) -> None:
        """A DDP module that was made before the hooks begins its first forward pass."""
        suppress_errors(self.forward.watch, module)  # whatever comes of the rest, once is enough
        suppress_errors(self.watch_ddp, module)

    def _record_native_at_step_end(self) -> bool:
        """Records what C++ did in the step that ends. Returns whether there was anything; True where that failed or a
        graph is being captured, so that the next step's end is checked, too."""
        try:
            if not self._opened and not self._is_helper():
                self.open()
            elif not self._opened and not _is_beside_a_rank():
                self._tell_of_helper()
            if not self.is_hooked:
                return False
            return self.native.record_step() > 0 or self.captures.under_way()
        except Exception:
            self.recorder.totals.errors += 1
            return True

    def _before_group_ends(self, group: Any) -> None:
        """A process group is about to end: records what C++ did in it since the last check, while torch can tell, and
        holds it no longer."""
        self._had_groups = True
        self._have_end_told()
        self._record_native(group)
        if group is sys.modules["torch"].distributed.group.WORLD:
            note_departure()
        self.groups.end(group)
        self.native.end(group)
        self.reducers.end(group)

    def _record_native(self, group: Any = None) -> None:
        if (not self._opened and self._is_helper()) or get_ident() != self.steps.thread:
            return
        try:
            self.native.record_new(group)
        except Exception:
            self.recorder.totals.errors += 1

    def _forget_groups(self) -> None:
        self.groups.forget()
        self.native.forget_groups()

    def _after_fork_in_child(self) -> None:
        """A forked child is not the rank. It has a rank file of its own only where it makes collectives itself."""
        self.recorder.disable_after_fork()
        self.captures.forget()
        if self.digests is not None:
            self.digests.stop()
        forget_calls()
        self.placement.index = None
        self._forget_groups()
        self._begin(forked_at=self.recorder.step)
        self.steps.updates_elsewhere = 0
        WITNESS.forget()

    def witness_start(self) -> None:
        """The process has torch: it may become a rank."""
        if not self._is_helper() and self._start is None:
            WITNESS.starting()
            self._start = StartWatch()
            self._start.begin()

    def witness_end(self) -> None:
        """The process ends: where it trained, or initialized torch.distributed, and nothing of it was recorded, it says
        so."""
        self._end_start()
        suppress_errors(lambda: WITNESS.end(*self._unseen()))

    def _end_start(self) -> None:
        if self._start is not None:
            suppress_errors(self._start.end)

    def _unseen(self) -> tuple[str, ...]:
        """The reason why nothing of this process is recorded, what to do, and what it did; an empty reason where
        nothing should be."""
        trained = self.recorder.step > self._forked_at
        if (self._opened and (trained or self.recorder.lanes())) or _is_beside_a_rank():
            return SEEN
        if self._had_rpc:
            return UNSEEN_RPC
        if trained and not self._opened:
            return UNSEEN_HELPER
        if self.steps.updates_elsewhere:
            return UNSEEN_THREADS
        initialized = self._had_groups or (not self._forked and _has_groups())
        if initialized and FACTS.get(ENDING) is None and getattr(sys, "last_value", None) is None:
            return UNSEEN_GROUPS  # an exception, which Python keeps as the last, kept it from more
        return SEEN

    def _tell_of_helper(self) -> None:
        self._have_end_told()
        WITNESS.unseen(UNSEEN_HELPER[0])

    def _have_end_told(self) -> None:
        """A process that multiprocessing forked does not come to atexit."""
        if not self._end_is_told:
            self._end_is_told = True
            call_at_end_of_multiprocessing_child(self.witness_end)

    def _rpc_began(self, *_: Any, **__: Any) -> None:
        self._had_rpc = True
        self._have_end_told()
        if not self.recorder.lanes() and not _is_beside_a_rank():
            WITNESS.unseen(UNSEEN_RPC[0])


SEEN: Final = ("", "")
UNSEEN_RPC: Final = (
    "its tensors travel by torch RPC, which no hook records",
    "laggard compares ranks that make collectives: look at the machines with `laggard healthcheck`",
)
UNSEEN_HELPER: Final = (
    "another process started it, and it made no collective",
    "call laggard.trainer_hooks.attach(model, optimizer) in it",
)
UNSEEN_THREADS: Final = (
    "its optimizers step on other threads than the one that is watched",
    "call laggard.trainer_hooks.attach(model, optimizer) on the thread that trains",
)
UNSEEN_GROUPS: Final = (
    "it made no collective, and no step with an optimizer of torch",
    "call laggard.trainer_hooks.attach(model, optimizer) where it trains otherwise",
    "initialized torch.distributed",
)
"""The reasons why nothing of a process is recorded, what to do about it, and what it did, where that is not to
train."""


def _is_beside_a_rank() -> bool:
    """Whether a rank, which is seen, started this process: whatever it does is no training of its own."""
    return os.environ.get(ENV_RANK_PROCESS, str(os.getpid())) != str(os.getpid())


def _has_groups() -> bool:
    torch = sys.modules["torch"]
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def call_at_end_of_multiprocessing_child(act: Callable[[], None]) -> None:
    """Has act() called when this process ends, if it is one that multiprocessing forked: such a process ends by
    os._exit(), after its target and multiprocessing's own finalizers, and never comes to atexit."""
    process, util = (sys.modules.get(f"multiprocessing.{name}") for name in ("process", "util"))
    if process is not None and util is not None and process.parent_process() is not None:
        util.Finalize(None, act, exitpriority=-100)  # after those of the script


def device_finder(
    environ: Mapping[str, str], placement: Placement | None = None, captures: GraphCaptures | None = None
) -> FindDevice | None:
    """Finds the CUDA device that the process computes on. None where LAGGARD_HOST_CLOCK=1 asks for the host's clock."""
    if environ.get(ENV_HOST_CLOCK, "") == "1":
        return None
    return functools.partial(_find_cuda, placement or Placement(), captures or GraphCaptures())


def _find_cuda(placement: Placement, captures: GraphCaptures, recorder: Recorder) -> Any:
    """A timer only once torch has started CUDA by itself."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    from laggard.trainer_hooks.device import cuda

    timer = cuda.create_timer(recorder, placement, captures)
    if timer is not None:
        FACTS.set(GPU, gpu_uuid(placement.find()))
    return timer
