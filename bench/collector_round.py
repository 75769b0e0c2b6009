"""What a collector's round costs in CPU time and memory for 512 to 4,096 agents of 8 ranks, without the network: the
agents' answers are made ahead, as bytes, and go the way that a fetched body goes.

The first round has what a rank file holds when a collector starts (30 s of steps), the next ones the steps of five
seconds each, four a second; one rank is slow. Each case runs in a process of its own, so that its memory is its own.
Times are the process's CPU time: what else runs on the machine is not in them.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from laggard.agent.ranks.packed_steps import pack
from laggard.collector import garbage
from laggard.collector.jobs.calm import CalmJobs
from laggard.collector.jobs.held_culprits import HeldCulprits
from laggard.collector.jobs.holdings import Limits
from laggard.collector.jobs.snapshot import ClusterSnapshot, build_snapshot
from laggard.collector.jobs.window import JobWindows
from laggard.collector.scrape.agent_state import AgentState
from laggard.collector.scrape.targets import parse_target
from laggard.collector.scrape.validation import validate_ranks_answer
from laggard.locate.verdict import locate
from laggard.model import Verdict
from laggard.rankfile import Step
from laggard.wire import encode
from laggard.wire.ranks import BeatRow, CollectiveTotal, LaneProgress, RankRow, RanksDocument

RANKS: Final = 8
STEP_SECONDS: Final = 0.25
FIRST_SECONDS: Final = 30.0
ROUND_SECONDS: Final = 5.0
SLOW_RANK: Final = 3
PARTS: Final = ("decode", "merge", "judge")
MIB: Final = 1 << 20


class Case(NamedTuple):
    """A cluster: so many agents, whose jobs have as many ranks each as can be."""

    agents: int
    jobs: int

    def job_of(self, agent: int) -> int:
        return agent * self.jobs // self.agents

    def ranks_of(self, job: int) -> range:
        """The numbers of the agents of the job."""
        first, after = (-(-edge * self.agents // self.jobs) for edge in (job, job + 1))
        return range(first, after)


def document(case: Case, agent: int, began: float, now: float) -> bytes:
    """What the agent answers at `now` to whom has asked it at `began`, in seconds on the ranks' clock."""
    job = case.job_of(agent)
    agents = case.ranks_of(job)
    steps = range(int(began / STEP_SECONDS), int(now / STEP_SECONDS))
    first = (agent - agents.start) * RANKS
    rows = tuple(rank_row(job, first + local, local, len(agents) * RANKS, agent, steps) for local in range(RANKS))
    slow = [50_000_000 if rank == SLOW_RANK and job == 0 else 0 for rank in range(first, first + RANKS)]
    columns = pack([[step_of(first + local, step, slow[local]) for step in steps] for local in range(RANKS)])
    return encode(RanksDocument(f"n{agent}", "boot", max(0.0, now - 1), rows, (), now=1.7e9 + now, steps=columns))


def rank_row(job: int, rank: int, local: int, world: int, agent: int, steps: range) -> RankRow:
    lanes = tuple(LaneProgress(op, "dp:0", steps.stop * 20, steps.stop * 20) for op in ("all_reduce", "broadcast"))
    totals = tuple(CollectiveTotal(op, "dp", steps.stop * 20, steps.stop * 0.08, 1 << 40) for op in ("all_reduce",))
    return RankRow(
        f"bench-{job}", rank, local, world, f"n{agent}", f"GPU-{agent:08x}-{local}", 0, 1000, 4000 + local,
        "/system.slice/slurmstepd.scope/job_1/step_0", "running", steps.stop, steps.stop * STEP_SECONDS,
        steps.stop * 0.15, (0.1,) * 9, 1.7e9 + steps.stop * STEP_SECONDS, totals, None, "forward", 0,
        beat=BeatRow(0.4, 1.0, "on", lanes, ()), last_beat_timestamp_seconds=1.7e9 + steps.stop * STEP_SECONDS,
        facts={"script": "train.py", "started": 1.7e9, "groups": {"dp:0": [0, world, 1]}},
    )  # fmt: skip


def step_of(rank: int, step: int, slow_ns: int) -> Step:
    """As rank files have it: times differ a little from rank to rank and step to step."""
    noise, length = (rank * 7919 + step * 104_729) % 1_000_003, round(STEP_SECONDS * 1e9)
    phases = (10_000_123, 50_000_000 + slow_ns + noise, 80_001_371, 10_000_000, 0, 0, 0, 0, 0)
    start = step * length + noise
    return Step(step, start, start + length, phases, length - sum(phases), 0)


class Round:
    """A collector's round, without the network and the page."""

    def __init__(self, case: Case, judges_all: bool = False) -> None:
        self.case = case
        self.judges_all = judges_all
        self.calm = CalmJobs()
        self.agents = [
            AgentState(parse_target(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}:9400")) for n in range(case.agents)
        ]
        self.windows = JobWindows(Limits())
        self.held = HeldCulprits()
        self.seconds = dict.fromkeys(PARTS, 0.0)

    @contextmanager
    def counting(self, part: str) -> Iterator[None]:
        began = time.process_time()
        yield
        self.seconds[part] += time.process_time() - began

    def run(self, began: float, now: float) -> ClusterSnapshot:
        """One round with the steps from `began` to `now`; what each part takes is in `seconds`."""
        self.seconds = dict.fromkeys(PARTS, 0.0)
        for number, agent in enumerate(self.agents):
            body = document(self.case, number, began, now)
            with self.counting("decode"):
                answer = validate_ranks_answer(body)
            with self.counting("merge"):
                agent.update_ranks(answer, self.windows, now, now)
        with self.counting("judge"):
            nodes = tuple(agent.row(now) for agent in self.agents)
            self.calm.begin_round(self.judges_all)
            snapshot = build_snapshot(self.windows, ClusterSnapshot(nodes=nodes), locate, calm=self.calm)
            self.held.held(snapshot.jobs, now)
        return snapshot


def require_slow_rank(snapshot: ClusterSnapshot, case: Case) -> None:
    """Ends the benchmark where the verdicts are not those that the steps were made for."""
    failed = {job.key.job_id: job.location.culprits for job in snapshot.jobs if job.location.verdict is Verdict.FAIL}
    if len(snapshot.jobs) != case.jobs or [*failed] != ["bench-0"] or SLOW_RANK not in failed["bench-0"][0].ranks:
        raise SystemExit(f"{case}: {len(snapshot.jobs)} jobs, of which are slow: {failed}")


def measured(case: Case, rounds: int, judges_all: bool) -> dict[str, float]:
    """The CPU seconds of each part in the first round and, on average, in those that follow; and the memory in MiB."""
    garbage.look_rarely()
    collector, found = Round(case, judges_all), {}
    require_slow_rank(collector.run(0.0, FIRST_SECONDS), case)
    found.update({f"first {part}": collector.seconds[part] for part in PARTS})
    for each in range(rounds):
        began = FIRST_SECONDS + each * ROUND_SECONDS - 1
        require_slow_rank(collector.run(began, began + ROUND_SECONDS + 1), case)
        for part in PARTS:
            found[part] = found.get(part, 0.0) + collector.seconds[part] / rounds
    found["MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB
    return found


def in_own_process(case: Case, rounds: int, judges_all: bool) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", str(case.agents), str(case.jobs), "--rounds", str(rounds)]
    command += ["--judge-all"] if judges_all else []
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def show(cases: list[Case], measure: Callable[[Case], dict[str, float]]) -> None:
    columns = [*(f"first {part}" for part in PARTS), *PARTS]
    print(f"| agents of {RANKS} ranks | jobs | {' | '.join(columns)} | of a core | MiB |")
    print("|---" * (len(columns) + 4) + "|")
    for case in cases:
        found = measure(case)
        share = 100 * sum(found[part] for part in PARTS) / ROUND_SECONDS
        times = " | ".join(f"{found[name]:.2f} s" for name in columns)
        print(f"| {case.agents:,} | {case.jobs} | {times} | {share:.0f} % | {found['MiB']:,.0f} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--agents", type=int, nargs="+", default=[512, 1024, 2048, 4096])
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 500])
    parser.add_argument("--rounds", type=int, default=4, help="even: calm jobs are judged in every second one")
    parser.add_argument("--judge-all", action="store_true", help="judge calm jobs in each round, too")
    parser.add_argument("--one", type=int, nargs=2, metavar=("AGENTS", "JOBS"), help="one case, as JSON")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measured(Case(*arguments.one), arguments.rounds, arguments.judge_all)))
        return 0
    cases = [Case(agents, jobs) for jobs in arguments.jobs for agents in arguments.agents]
    show(cases, lambda case: in_own_process(case, arguments.rounds, arguments.judge_all))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
