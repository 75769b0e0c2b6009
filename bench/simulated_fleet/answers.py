"""What each agent of the fleet answers, as bytes. The times of steps are drawn once for a job and put together for each
answer, so that one process answers for thousands of agents."""

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from laggard.model import RankEnd
from laggard.wire import encode
from laggard.wire.ranks import (
    BeatRow,
    CollectiveLane,
    CollectiveRow,
    CollectivesDocument,
    CollectiveTotal,
    InFlight,
    LaneProgress,
    PackedSteps,
    RankCollectives,
    RankRow,
    RanksDocument,
)
from simulated_fleet.plan import RANKS, Job, Plan, Share

BOOT: Final = 100_000.0
"""The seconds for which the nodes had been up when the fleet's clock was 0."""

RING_STEPS: Final = 1365
"""The steps that a rank file holds."""

VARIANTS: Final = 64
"""The different times of a step that one job's ranks have."""

NOISE: Final = 0.004
"""The standard deviation of a rank's own time, as a share of its step; GPUs themselves differ by half a percent."""

OWN_SHARE: Final = 0.95
SLOW_SHARE: Final = 0.8
"""The share of the step that the others are busy beside a slow rank, which is so for OWN_SHARE."""

LINK_SHARE: Final = 0.75
TRANSFER_SHARE: Final = 0.03
SLOW_TRANSFER_SHARE: Final = 0.2
COLLECTIVE_STEPS: Final = 24
"""The steps whose single collectives are told of."""

HEALTHY: Final = "hgx_h100"
ILL: Final = ("pcie_errors", "acs_on", "peermem_missing", "nccl_conf_harmful")
_NAME: Final = "the-node's-name"
_GPU: Final = b"-5f1e-4c1a-"
"""The part of the UUIDs of the recorded machines' GPUs in whose place each node has its number."""


class Now(NamedTuple):
    """The time of an answer: on the fleet's clock, and in Unix time."""

    fleet: float
    unix: float


def reports(folder: Path) -> dict[str, bytes]:
    """The report of each recorded machine, as `laggard healthcheck` has it, under a name that stands for the node's."""
    from support.materialise import materialise

    found = {}
    for name in (HEALTHY, *ILL):
        root = materialise(name, folder / name)
        words = [sys.executable, "-P", "-m", "laggard", "healthcheck", "--host-root", str(root), "--format", "json"]
        said = json.loads(subprocess.run(words, capture_output=True, text=True, check=False).stdout)
        found[name] = json.dumps(said | {"node": _NAME}, separators=(",", ":")).encode()
    return found


class Answers:
    """Of all agents of the plan. `zero`: the monotonic time at which the fleet's clock was 0."""

    def __init__(self, plan: Plan, zero: float, machines: Mapping[str, bytes]) -> None:
        self.plan = plan
        self._zero = zero
        self._machines = machines
        self._numbers = lru_cache(maxsize=None)(_step_numbers)

    def now(self) -> Now:
        return Now(time.monotonic() - self._zero, time.time())

    def report(self, node: int) -> bytes:
        report = self._machines[self.plan.ill.get(node, HEALTHY)].replace(_NAME.encode(), b"n%d" % node, 1)
        return report.replace(_GPU, b"-%04x-4c1a-" % node)

    def ranks(self, node: int, since: float | None, later: bool) -> bytes:
        """`since`: on the node's clock. `later`: as an agent of the next release may answer, with fields that this one
        does not know."""
        now, share = self.now(), self.plan.share(node)
        if self.plan.bad.get(node) == "claims" and self.plan.jobs:
            return self._claims(node, now)
        rows = () if share is None else tuple(rank_row(share, local, now, node) for local in range(RANKS))
        document = RanksDocument(f"n{node}", f"boot-{node}", BOOT + now.fleet - 1, rows, (), now=now.unix)
        if share is not None and since is not None:
            steps = self._steps(share.job, since, now)
            document = structs.replace(document, steps=self._packed(share, steps))
        body = encode(document)
        return _of_the_next_release(body) if later else body

    def absurd(self, node: int) -> bytes:
        return self.ranks(node, 0.0, False).replace(b'"step_seconds":', b'"step_seconds":1e300,"was":', 1)

    def _claims(self, node: int, now: Now) -> bytes:
        """The answer of an agent that tells of ranks of the largest job, which run on another node, as if they ran on
        its own, and slowly."""
        job = self.plan.jobs[0]
        first = (node + 1) % job.nodes * RANKS
        rows = tuple(rank_row(Share(job, first), local, now, node) for local in range(RANKS))
        steps = range(max(0, job.done(now.fleet) - 40), job.done(now.fleet))
        slow = np.zeros((len(steps), 10), np.int64)
        slow[:, 0], slow[:, 2] = round(0.1 * job.step * 1e9), round(0.9 * job.step * 1e9)
        columns = _columns(job, steps, [slow] * RANKS)
        document = RanksDocument(f"n{node}", f"boot-{node}", BOOT + now.fleet - 1, rows, (), now=now.unix)
        return encode(structs.replace(document, steps=columns))

    def collectives(self, node: int, ranks: Sequence[int]) -> bytes:
        share = self.plan.share(node)
        if share is None:
            return b"{}"
        found = tuple(_collectives_of(share.job, rank, self.now()) for rank in ranks)
        return encode(CollectivesDocument(f"n{node}", share.job.owner, share.job.name, found))

    def _steps(self, job: Job, since: float, now: Now) -> range:
        done = job.done(now.fleet)
        first = int((since - BOOT + job.age) / job.step)
        return range(max(0, first, done - RING_STEPS), done)

    def _packed(self, share: Share, steps: range) -> PackedSteps:
        number = np.arange(steps.start, steps.stop)
        times = [
            self._numbers(share.job, rank % 4, rank in share.job.victims)[(rank * 7919 + number * 31) % VARIANTS]
            for rank in range(share.rank, share.rank + RANKS)
        ]
        return _columns(share.job, steps, times)


def _columns(job: Job, steps: range, times: Sequence[NDArray[np.int64]]) -> PackedSteps:
    """`times`: of each rank, as _step_numbers() has them."""
    number = np.arange(steps.start, steps.stop)
    start = np.rint((BOOT - job.age + number * job.step) * 1e6).astype("<u8") * 1000
    end = np.rint((BOOT - job.age + (number + 1) * job.step) * 1e6).astype("<u8") * 1000
    own = np.concatenate(times)
    columns = [number.astype("<u4"), start, (end - start).astype("<u8"), own[:, 0], None, *own[:, 1:].T]
    widths, parts = [], []
    for place, column in enumerate(columns):
        told = column is not None and bool(column.any())
        width = 0 if not told else 8 if place in (1, 2) else 4
        whole = np.tile(column, len(times)) if place < 3 else column
        widths.append(width)
        parts.append(whole.astype(f"<u{width}").tobytes() if width else b"")
    return PackedSteps((len(steps),) * len(times), tuple(widths), b"".join(parts))


def _step_numbers(job: Job, speed: int, victim: bool) -> NDArray[np.int64]:
    """The wait and the phases of ranks of one speed, in nanoseconds; [VARIANTS, 10]."""
    draw = random.Random(f"{job.number} {speed} {victim}")
    share = OWN_SHARE
    if job.fault == "slow_link":
        share = LINK_SHARE
    elif job.fault == "slow_gpu" and not victim:
        share = SLOW_SHARE
    found = []
    for _ in range(VARIANTS):
        own = job.step * (share + 0.002 * (speed - 1.5) / 1.5 + draw.gauss(0, NOISE))
        own = min(own, 0.99 * job.step)
        phases = [round(part * own * 1e6) * 1000 for part in (0.01, 0.32, 0.64, 0.03)]
        found.append([round(job.step * 1e6) * 1000 - sum(phases), *phases, 0, 0, 0, 0, 0])
    return np.array(found)


def rank_row(share: Share, local: int, now: Now, node: int) -> RankRow:
    """The row of one rank, without its steps."""
    job, rank = share.job, share.rank + local
    done, still = job.done(now.fleet), max(0.0, now.fleet - job.stop)
    halted = now.fleet > job.stop
    victim = halted and rank == job.victim
    dead = victim and job.fault == "dead"
    entered = done + (halted and not victim)
    lanes = tuple(LaneProgress("all_reduce", group, entered, done) for group in _groups(job, rank))
    silent = still if victim else 0.4
    last = now.unix - now.fleet - job.age + done * job.step
    return RankRow(
        job.name, rank, local, job.ranks, f"n{node}", f"GPU-{node:08x}-{local}", 0, job.owner, 4000 + local,
        "/system.slice/slurmstepd.scope/job_1/step_0", "died" if dead else "running", done, done * job.step,
        done * job.step * OWN_SHARE, (0.1,) * 9, last,
        (CollectiveTotal("all_reduce", "dp", done, done * 0.05, 1 << 30),),
        InFlight("all_reduce", lanes[0].group, entered, still) if halted and not victim else None,
        "backward", 0, stopped=victim and job.fault == "stopped",
        beat=BeatRow(silent, 1.0, "on", lanes, ()), last_beat_timestamp_seconds=now.unix - silent,
        facts={"script": "train.py", "started": now.unix - now.fleet - job.age, "groups": _groups(job, rank)},
        end=RankEnd(now.unix - still, signal="SIGKILL") if dead else None,
    )  # fmt: skip


def _groups(job: Job, rank: int) -> dict[str, list[int]]:
    """The process groups of a rank: the job's, and in one with a slow link that of the two ranks with which it shares
    its gradients over the network."""
    groups: dict[str, list[int]] = {}
    if job.fault == "slow_link" and (lower := _lower(job, rank)) is not None:
        groups[f"dp:{lower}-{lower + RANKS}"] = [lower, 2, RANKS]
    return groups | {"world:0": [0, job.ranks, 1]} if groups else {"dp:0": [0, job.ranks, 1]}


def _lower(job: Job, rank: int) -> int | None:
    """The lower rank of a rank's pair; None for those of the last of an odd number of machines."""
    lower = rank // (2 * RANKS) * 2 * RANKS + rank % RANKS
    return lower if lower + RANKS < job.ranks else None


def _collectives_of(job: Job, rank: int, now: Now) -> RankCollectives:
    groups = _groups(job, rank)
    lanes = tuple(CollectiveLane("all_reduce", name.partition(":")[0], name, -1) for name in groups)
    done = job.done(now.fleet)
    rows = [each for step in range(max(0, done - COLLECTIVE_STEPS), done) for each in _of_step(job, rank, step, lanes)]
    return RankCollectives(rank, lanes, tuple(rows))


def _of_step(job: Job, rank: int, step: int, lanes: Sequence[CollectiveLane]) -> Iterator[CollectiveRow]:
    """The collectives of a step: with the partner first, then with all."""
    draw = random.Random(rank * 1_000_003 + step)
    end = BOOT - job.age + (step + 1) * job.step
    if len(lanes) == 1:
        waited = job.step * (1 - OWN_SHARE)
        yield CollectiveRow(step, 0, step, end - waited, end, waited, 1 << 30)
        return
    slow = rank in job.victims
    share = (SLOW_TRANSFER_SHARE if slow else TRANSFER_SHARE) * (1 + draw.gauss(0, 0.02))
    start = end - (1 - LINK_SHARE) * job.step
    yield CollectiveRow(step, 0, step, start, start + share * job.step, share * job.step, 1 << 30)
    rest = end - start - share * job.step
    yield CollectiveRow(step, 1, step, end - rest, end, rest, 1 << 20)


def _of_the_next_release(body: bytes) -> bytes:
    """The same with what a later release may add, by docs/development/contracts.md: fields with a default."""
    told: dict[str, Any] = {"of_the_next_release": {"any": [1, 2.5, None]}}
    begin = json.dumps(told, separators=(",", ":")).encode()[1:-1]
    body = b"{" + begin + b"," + body[1:]
    return body.replace(b'{"job_id":', b"{" + begin + b',"job_id":')
