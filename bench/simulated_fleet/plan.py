"""Who is in the fleet: its jobs and what is wrong with them, which agents are away, lie or are slow. The same seed
makes the same fleet. Pure."""

import bisect
import dataclasses
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple

RANKS: Final = 8
"""The GPUs of a node, and so the ranks of a job on it."""

LARGEST_RANKS: Final = 4096
"""The ranks of the largest job, where the fleet has room for it beside others."""

IDLE_SHARE: Final = 0.03
"""The share of the nodes on which no job runs."""

MIN_MEAN_NODES: Final = 4
"""The nodes of a job on average, at least: a small fleet has fewer jobs, so that they are of several sizes."""

FAULTY_SHARE: Final = 0.1
"""The share of the jobs in which something is wrong; the largest one always has a slow GPU."""

FAULTS: Final = ("slow_gpu", "stopped", "hung", "dead", "slow_link")
"""slow_gpu: one rank's forward and backward take longer. stopped, hung: the process of one rank stops by a signal, or
none of its threads runs. dead: it is killed. slow_link: the way between two machines is slower than those of others."""

KINDS: Final[Mapping[str, str]] = {
    "slow_gpu": "slow_compute",
    "stopped": "hung",
    "hung": "hung",
    "dead": "dead",
    "slow_link": "slow_link",
}
"""The kind of culprit that is right for each of them."""

LINK_NODES: Final = range(4, 9)
"""The machines of a job with a slow link: of up to 64 ranks a collector asks all for their single collectives."""

AWAY_SHARE: Final = 0.01
BAD_SHARE: Final = 0.05
BAD: Final = ("garbage", "half", "late", "wrong_length", "absurd", "claims")
"""garbage: no JSON. half: the connection ends within the answer. late: it comes after more than three seconds.
wrong_length: Content-Length is less than the body. absurd: numbers beyond all bounds. claims: the agent reports another
node's ranks as its own, much slower than they are."""

STOPS: Final = (20.0, 40.0)
"""Between these seconds of the fleet's clock ranks stop and die."""

STEP_SECONDS: Final = (0.5, 4.0)
AGE_SECONDS: Final = (120.0, 3600.0)


@dataclasses.dataclass(frozen=True)
class Job:
    """A job on `nodes` neighbouring nodes from `first` on. It had trained for `age` seconds when the fleet's clock was
    0. `victim`: the rank at which `fault` is, of a slow link the lower of the two machines' first ranks; `stop`: when
    it stops, in seconds of the fleet's clock."""

    number: int
    first: int
    nodes: int
    step: float
    age: float
    fault: str = ""
    victim: int = -1
    stop: float = math.inf

    @property
    def name(self) -> str:
        return f"fleet-{self.number}"

    @property
    def owner(self) -> int:
        return 1000 + self.number % 97

    @property
    def key(self) -> str:
        return f"{self.owner}:{self.name}"

    @property
    def ranks(self) -> int:
        return self.nodes * RANKS

    @property
    def victims(self) -> frozenset[int]:
        """The ranks that may be named; of a slow link those of both of its machines."""
        if self.fault == "slow_link":
            return frozenset(range(self.victim, self.victim + 2 * RANKS))
        return frozenset({self.victim} if self.fault else ())

    def done(self, now: float) -> int:
        """The number of steps that are done at `now` of the fleet's clock."""
        return max(0, int((min(now, self.stop) + self.age) / self.step))


class Share(NamedTuple):
    """A node's part of a job: its first rank there."""

    job: Job
    rank: int


@dataclasses.dataclass(frozen=True)
class Plan:
    """`bad`: by node, how its agent lies or is slow. `away`: the nodes that answer nothing. `ill`: by node, the
    recorded machine that its report is of; the others are healthy."""

    nodes: int
    jobs: tuple[Job, ...]
    bad: Mapping[int, str]
    away: frozenset[int]
    ill: Mapping[int, str]

    def share(self, node: int) -> Share | None:
        """The job that runs on the node, None where none does."""
        place = bisect.bisect_right(self._starts, node) - 1
        if place < 0:
            return None
        job = self.jobs[place]
        return Share(job, (node - job.first) * RANKS) if node < job.first + job.nodes else None

    @cached_property
    def _starts(self) -> list[int]:
        return [job.first for job in self.jobs]

    def unseen(self, job: Job) -> list[int]:
        """The job's nodes whose agents tell nothing true of it."""
        return [node for node in range(job.first, job.first + job.nodes) if node in self.bad or node in self.away]


def made(nodes: int, jobs: int, seed: int, machines: Sequence[str] = ()) -> Plan:
    """A fleet of so many nodes and, where these suffice, jobs, the largest of which has LARGEST_RANKS. `machines`: the
    recorded machines that 1 % of the nodes are."""
    draw = random.Random(f"fleet {seed} {nodes} {jobs}")
    placed = list(_placed(nodes, jobs, draw))
    numbers = draw.sample(range(nodes), round(nodes * (AWAY_SHARE + BAD_SHARE)))
    away = frozenset(numbers[: round(nodes * AWAY_SHARE)])
    bad = {node: BAD[place % len(BAD)] for place, node in enumerate(numbers[len(away) :])}
    ill = {node: draw.choice(machines) for node in draw.sample(range(nodes), nodes // 100)} if machines else {}
    return Plan(nodes, tuple(placed), bad, away, ill)


def _placed(nodes: int, jobs: int, draw: random.Random) -> Iterator[Job]:
    first = 0
    for number, size in enumerate(_sizes(nodes, jobs, draw)):
        age = math.exp(draw.uniform(*map(math.log, AGE_SECONDS)))
        job = Job(number, first, size, math.exp(draw.uniform(*map(math.log, STEP_SECONDS))), age)
        yield _with_fault(job, draw)
        first += size


def _sizes(nodes: int, jobs: int, draw: random.Random) -> list[int]:
    """The nodes of each job, the largest first: the others' sizes are equally often of each order of magnitude."""
    largest = min(LARGEST_RANKS // RANKS, nodes // 2)
    left = round(nodes * (1 - IDLE_SHARE)) - largest
    count = min(jobs, left // MIN_MEAN_NODES)
    drawn = [math.exp(draw.uniform(0, math.log(64))) for _ in range(count)]
    unit = (left - count) / sum(drawn) if count else 0.0
    return [largest, *(1 + int(unit * size) for size in drawn)]


def _with_fault(job: Job, draw: random.Random) -> Job:
    if job.number == 0:
        return dataclasses.replace(job, fault="slow_gpu", victim=draw.randrange(job.ranks))
    if draw.random() >= FAULTY_SHARE:
        return job
    fault = draw.choice(FAULTS if job.nodes in LINK_NODES else FAULTS[:-1])
    if fault == "slow_link":
        return dataclasses.replace(job, fault=fault, victim=2 * RANKS * draw.randrange(job.nodes // 2))
    stop = math.inf if fault == "slow_gpu" else draw.uniform(*STOPS)
    return dataclasses.replace(job, fault=fault, victim=draw.randrange(job.ranks), stop=stop)
