"""A rank: a host that launches, a GPU whose main stream computes, and streams beside it for collectives.

Host and main stream each have a clock of their own. The host runs ahead of the GPU, until it asks for a result; the
main stream goes on when what it waits for is done, and the host has launched what comes next.
"""

import math
import random
from collections import defaultdict
from collections.abc import Generator, Hashable, Sequence
from typing import NamedTuple

import numpy as np

from fluid_simulator.groups import Group
from fluid_simulator.job import Memberships, Stop
from fluid_simulator.operations import Exchange, Lane, Operation
from fluid_simulator.simulation import Simulation

Program = Generator[Operation, None, None]
"""A rank's program. It yields operations that its host or its main stream has to wait for."""
RANK_STREAM = 79
DRAWN_AT_ONCE = 512
BURST_SHARE = 0.3
"""The share of kernels for which clocks fall, where they fall for some milliseconds at a time."""
PAUSE_SHARE, PAUSE_SECONDS = 0.15, 0.02
"""The share of launches at which another process has the host's core, and for how long on the average."""
HOST_SIGMA = 0.06
KERNEL_GAP = 5e-6
"""Seconds from a launch to the kernel's begin: CUDA's launch latency, in its order."""
SYNC_SECONDS = 8e-6


class Stuck(Exception):
    """The host stands still for good."""


class Blocked(Exception):
    """The host asks a GPU that does not answer any more."""


class Record(NamedTuple):
    """A collective, send or receive that the rank waited for, as a recording has it."""

    step: int
    group: Group
    op: str
    peer: int | None
    number: int
    size: float
    issued: float
    start: float
    end: float
    waited: float


class Span(NamedTuple):
    step: int
    name: str
    start: float
    end: float
    micro: int | None


class Step(NamedTuple):
    number: int
    start: float
    end: float
    work: int


class Factors:
    """The factors that make a rank slower or its work uneven in this step. `gpu`, `host`, `copy`: how much longer
    kernels, launches and the batch's copy take; `burst` and `pause`: by how much clocks fall at times, and others have
    the core; `input`: seconds more of a loader's worker for a batch; `work`: the weights of the step's micro-batches;
    `tokens` in it."""

    def __init__(self) -> None:
        self.gpu = self.host = self.copy = 1.0
        self.burst = self.pause = self.input = 0.0
        self.work: Sequence[float] = (1.0,)
        self.tokens = 0


class Rank:
    """`host_time` and `gpu_time`: seconds up to which host and main stream are busy. `host_only`: the GPU stands, and
    the host goes on until it asks the GPU. `state`: run, blocked, stuck, synced (it asks a GPU that stands), gpu (its
    GPU stands) or end. `stood_at` and `stood_in`: the operation that its main stream or host waited for when nothing
    moved any more, and the phase."""

    def __init__(self, simulation: Simulation, number: int, groups: Memberships, stage: int) -> None:
        self.simulation, self.number, self.groups, self.stage = simulation, number, groups, stage
        self.settings = simulation.settings
        self.host_time = self.gpu_time = 0.0
        self.factors = Factors()
        self.entered: defaultdict[Lane, int] = defaultdict(int)
        self.done: defaultdict[Lane, int] = defaultdict(int)
        self.started_of_world = 0
        self.step = -1
        self.kernels = 0
        self.phase: str | None = None
        self.phase_begun = 0.0
        self.stop: Stop | None = None
        self.host_only = False
        self.state = "run"
        self.last_launched: Operation | None = None
        self.blocked_at: Operation | None = None
        self.stood_at: Operation | None = None
        self.stood_in: str | None = None
        self.records: list[Record] = []
        self.spans: list[Span] = []
        self.steps: list[Step] = []
        self._program: Program | None = None
        self._tails: dict[Hashable, Operation] = {}
        self._numbers: defaultdict[tuple[int | str, ...], int] = defaultdict(int)
        self._rng = np.random.default_rng([simulation.seed, RANK_STREAM, number])
        self._drawn: list[float] = []
        self._next = 0
        self._spells = random.Random(simulation.seed * 1000 + number)

    def normal(self) -> float:
        """A number of the standard normal distribution, of the rank's own stream."""
        if self._next >= len(self._drawn):
            self._drawn, self._next = self._rng.normal(0, 1, DRAWN_AT_ONCE).tolist(), 0
        self._next += 1
        return self._drawn[self._next - 1]

    def follow(self, program: Program) -> None:
        """Begins the program, within a fraction of a millisecond."""
        self._program = program
        self.simulation.agenda.at(0.0 + 1e-4 * abs(self.normal()), self.resume, None)

    def resume(self, argument: None) -> None:
        """Goes on, up to the next operation that has to be waited for."""
        assert self._program is not None
        try:
            operation = next(self._program)
            operation.waiter = self
            self.blocked_at = operation
            self.state = "blocked"
        except StopIteration:
            self.state = "end"
        except Stuck:
            self.state = "stuck"
        except Blocked:
            self.state = "synced"

    def time(self) -> float:
        return max(self.gpu_time, self.host_time)

    def stand_still(self) -> None:
        """Notes where the rank stands, when nothing moves any more. A host that does not wait for its
        collectives goes on launching until it asks the GPU."""
        self.stood_at = self.blocked_at if self.state == "blocked" else None
        self.stood_in = self.phase
        if self.state == "blocked" and not self.settings.blocking:
            self.host_only = True
            self.state = "run"
            self.resume(None)

    # What the program calls.

    def kernel(self, seconds: float, host_seconds: float | None = None) -> None:
        """A bunch of kernels. The GPU is not done before the host has launched the last one."""
        self.kernels += 1
        self._perhaps_stop()
        factors = self.factors
        duration = seconds * factors.gpu * math.exp(self.settings.gpu_sigma * self.normal())
        if factors.burst and self._spells.random() < BURST_SHARE:
            duration *= 1 + factors.burst / BURST_SHARE
        launching = seconds * self.settings.host_share if host_seconds is None else host_seconds
        launching = launching * factors.host * math.exp(HOST_SIGMA * self.normal())
        if factors.pause and self._spells.random() < PAUSE_SHARE:
            launching += factors.pause * PAUSE_SECONDS * self._spells.expovariate(1.0)
        begun = self.host_time
        self.host_time = begun + launching
        if not self.host_only:
            computed = max(self.gpu_time, begun + KERNEL_GAP) + duration
            self.gpu_time = max(computed, self.host_time + KERNEL_GAP)

    def _perhaps_stop(self) -> None:
        stop = self.stop
        if not stop or stop.step != self.step or stop.kernel != self.kernels:
            return
        if stop.how != "gpu":
            raise Stuck
        self.host_only = True
        self.state = "gpu"

    def collective(
        self,
        group: Group,
        op: str,
        size: float,
        stream: Hashable,
        behind_kernels: bool = True,
        own_size: float | None = None,
    ) -> Operation:
        """Launches the rank's part in the group's next `op`. `own_size`: of this member, where they differ."""
        number = self._number(group.index, op)
        exchange = None if self.host_only else self.simulation.collectives.join(group, op, number, size)
        recorded = size if own_size is None else own_size
        return self._launch(exchange, group, Lane(op, group.name, -1), number, recorded, stream, behind_kernels)

    def transfer(self, group: Group, op: str, peer: int, size: float, stream: Hashable) -> Operation:
        """Launches a send to the peer, or a receive (`recv`) from it."""
        pair = (self.number, peer) if op == "send" else (peer, self.number)
        number = self._number(*pair, op)
        exchange = None if self.host_only else self.simulation.transfers.join(*pair, number, size)
        return self._launch(exchange, group, Lane(op, group.name, peer), number, size, stream, True)

    def _number(self, *key: int | str) -> int:
        self._numbers[key] += 1
        return self._numbers[key] - 1

    def _launch(
        self,
        exchange: Exchange | None,
        group: Group,
        lane: Lane,
        number: int,
        size: float,
        stream: Hashable,
        behind_kernels: bool,
    ) -> Operation:
        self.host_time += self.settings.launch * self.factors.host
        self.entered[lane] += 1
        part = Operation(self, exchange, group, lane, number, size, self.step, self.host_time)
        self.last_launched = part
        if self.host_only:
            return part
        part.entered = max(self.host_time, self.gpu_time) if behind_kernels else self.host_time
        before = self._tails.get(stream)
        self._tails[stream] = part
        if before is None or before.done:
            ended = before.end if before is not None else 0.0
            part.arrive(max(part.entered, ended, self.simulation.agenda.now))
        else:
            before.following = part
        return part

    def wait(self, part: Operation, start: float | None = None) -> Program:
        """The main stream waits for it; the host too, where the job blocks. `start`: what is recorded as its start, if
        not when it was ready."""
        if not part.done and not self.host_only:
            yield part
        self._record(part, start)
        if self.settings.blocking and not self.host_only:
            self.host_time = max(self.host_time, self.gpu_time)

    def _record(self, part: Operation, start: float | None) -> None:
        if self.host_only:
            return
        assert part.ready is not None
        came = self.time()
        begun = part.ready if start is None else start
        self.gpu_time = end = max(came, part.end)
        end = max(end, begun)
        waited = max(0.0, end - max(came, begun))
        self.records.append(
            Record(part.step, part.group, part.op, part.peer, part.number, part.size, part.issued, begun, end, waited)
        )

    def synchronize(self) -> None:
        """The host waits for the GPU."""
        if self.host_only:
            raise Blocked
        self.host_time = self.time() + SYNC_SECONDS

    def begin(self, phase: str) -> None:
        self.phase = phase
        self.phase_begun = self.time()

    def end(self, phase: str, micro: int | None = None) -> None:
        if not self.host_only:
            self.spans.append(Span(self.step, phase, self.phase_begun, self.time(), micro))
        self.phase = None
