"""The last steps of every job in bounded memory, into which the agents' answers are ingested round by round.

No agent is believed about another's ranks: the first to report a rank keeps it for as long as it goes on, and is not
believed about it while another machine reports it as well. Another run of a job (a restart, or a lie) takes its place
only where more agents report that run than still report the old one.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from laggard.collector.jobs import holdings
from laggard.collector.jobs.job import CONTESTED_ANSWERS, Job, RankWindow, Run
from laggard.locate.job_timings import WINDOW_STEPS, Table
from laggard.model import JobKey
from laggard.wire.ranks import RankRow, RanksDocument

CLAIM_SECONDS = 60.0
"""The longest time, in seconds, that an agent keeps its claim on a rank that it has stopped reporting."""

RUN_SECONDS = 15.0
"""The time, in seconds, for which an agent that has fallen silent still counts as one that reports the job's old run;
two rounds, where these take longer: it is asked once in a round."""


class Refusal(enum.Enum):
    """The reason why a rank is not taken, in words for the agent's row."""

    OVER = "of a run that is over"
    CLAIMED = "reported by another agent first"
    OTHER_RUN = "of a run that other agents do not report"
    NO_ROOM = "beyond the limits"


class JobWindows:
    """The windows of all jobs. Not thread-safe: a round ingests, then reads, then the next round begins."""

    def __init__(self, limits: holdings.Limits | None = None, expire_after_seconds: float = 900.0) -> None:
        self.jobs: dict[JobKey, Job] = {}
        self._limits = limits or holdings.Limits()
        self._expire_after_seconds = expire_after_seconds
        self._jobs_held = holdings.Held(self._limits.jobs, holdings.MAX_JOBS_OF_AGENT)
        self._ranks_held = holdings.Held(self._limits.ranks, holdings.MAX_RANKS_OF_AGENT)
        self._keys_of_owner: dict[int, dict[JobKey, None]] = {}  # oldest first
        self._challengers: dict[JobKey, dict[Run, Job]] = {}
        self._round_began = math.nan
        self._no_room: dict[str, Counter[JobKey]] = {}
        # Of the answer that is being ingested: when it came and was asked for, by its node's clock too, whose jobs it
        # has, and for what and for whom there was no room, so that room is not looked for again at each row.
        self._now = self._asked_at = 0.0
        self._node_now: float | None = None
        self._reporter = ("", "")  # its node and boot id
        self._reported: set[JobKey] = set()
        self._full_for: set[tuple[str, int]] = set()

    def ingest(
        self,
        source: str,
        document: RanksDocument,
        steps: Sequence[Table],
        now: float,
        asked_at: float | None = None,
    ) -> Counter[Refusal]:
        """Adds the ranks that agent `source`, asked at `asked_at` (default: now), reported at `now` (seconds, any
        monotonic clock). `steps`: of each of them. Returns how many are not shown, and why."""
        self._asked_at, self._node_now = now if asked_at is None else asked_at, document.now
        self._reporter = document.node, document.boot_id
        self._round_began = now if math.isnan(self._round_began) else self._round_began
        refused: Counter[Refusal] = Counter()
        self._no_room[source] = no_room = Counter[JobKey]()
        self._now, self._reported = now, {JobKey(row.owner, row.job_id) for row in document.ranks}
        self._full_for.clear()
        taken: list[tuple[JobKey, Run]] = []
        runs: dict[JobKey, Run | None] = {}
        for row, table in _newest(zip(document.ranks, steps, strict=True)):
            key, run = JobKey(row.owner, row.job_id), Run(row.attempt, row.world_size)
            if row.state == "running":  # an agent speaks for one run at a time
                runs[key] = max(run, runs.get(key) or run)
            runs.setdefault(key, None)
            refusal = self._ingest_rank(key, run, source, row, table)
            if refusal is None:
                taken.append((key, run))
            else:
                refused[refusal] += 1
                no_room[key] += refusal is Refusal.NO_ROOM
        for key, spoken_for in runs.items():
            self._note_agent(key, source, spoken_for, now)
        for key, run in taken:
            if key not in self.jobs:  # it gave way to a later one
                refused[Refusal.NO_ROOM] += 1
                no_room[key] += 1
            elif self.jobs[key].run != run:
                refused[Refusal.OTHER_RUN] += 1
        return +refused

    def not_held(self, answering: Collection[str]) -> holdings.NotHeld:
        """The jobs and ranks that the agents `answering` reported last and there was no room for."""
        ranks: Counter[JobKey] = Counter()
        for source in answering:
            ranks.update(self._no_room.get(source, {}))
        ranks = +ranks
        return holdings.NotHeld(ranks, frozenset(key for key in ranks if key not in self.jobs), self._limits)

    def expire(self, now: float) -> None:
        """Drops the jobs that ended too long ago, and those of which no agent has reported a rank that runs for too
        long. The last word of a machine that is lost was that its ranks run, and agents tell of the job's other ranks
        for a while after these ended: that keeps no job. Called at the end of each round."""
        lasted = 0.0 if math.isnan(self._round_began) else now - self._round_began
        silent = max(RUN_SECONDS, 2 * lasted)
        self._round_began = math.nan
        for key, job in list(self.jobs.items()):
            if now - job.ended_at > self._expire_after_seconds:
                self._drop_job(key)
        for key, challengers in list(self._challengers.items()):
            for job in (self.jobs[key], *challengers.values()):
                job.agents = {agent: at for agent, at in job.agents.items() if now - at < silent}
            for run in [run for run, job in challengers.items() if not job.agents]:
                self._drop_challenger(key, run)
            self._settle(key)

    def forget_agent(self, source: str) -> None:
        """The agent is asked no longer. Its ranks stay until their job goes, or another agent claims them."""
        self._no_room.pop(source, None)

    def drop_source(self, source: str) -> None:
        """Drops the ranks that agent `source` reported: its machine was rebooted, and its clock began anew."""
        self._no_room.pop(source, None)
        for key, job in list(self.jobs.items()):
            job.agents.pop(source, None)
            challengers = self._challengers.get(key, {}).values()
            for run in (*challengers, job):
                self._drop_ranks(key, run, [number for number, rank in run.ranks.items() if rank.source == source])

    def _ingest_rank(self, key: JobKey, run: Run, source: str, row: RankRow, steps: Table) -> Refusal | None:
        """Takes the rank, with its steps, or returns why not."""
        now = self._now
        if key not in self.jobs and not (row.state == "running" or len(steps)):
            return Refusal.OVER  # the file of a rank that ended may stay for days: it does not bring back its job
        job = self._job_of(key, run, source, row, now)
        if isinstance(job, Refusal):
            return job
        rank = job.ranks.get(row.rank)
        if rank is not None and rank.source == source and rank.window.restarted(steps) and self.jobs[key] is job:
            job, rank = self._replace(key, self._made(run, source, row, now)), None
        if rank is None or rank.source != source:
            claimed = self._claim(key, job, source, row, now)
            if isinstance(claimed, Refusal):
                self._drop_ranks(key, job, ())
                return claimed
            rank = claimed
        rank.newest, rank.asked_at = row, self._asked_at
        rank.contested = max(0, rank.contested - 1)
        rank.updated_at = job.updated_at = now
        job.ended_at = max(job.ended_at, self._last_ran(row, now, job.ended_at))
        if rank.window.add(steps, self._most_steps(source)):
            job.progressed_at = now
        return None

    def _most_steps(self, source: str) -> int:
        """The number of steps that are kept of each of an agent's ranks, so that neither it nor all agents together
        take more room than WINDOW_STEPS of as many ranks as they may report."""
        of_agent = holdings.MAX_RANKS_OF_AGENT // max(1, self._ranks_held.of_agent[source])
        of_all = self._limits.ranks // max(1, self._ranks_held.total)
        return WINDOW_STEPS * max(1, min(of_agent, of_all))

    def _job_of(self, key: JobKey, run: Run, source: str, row: RankRow, now: float) -> Job | Refusal:
        """The run of the job that `row` belongs to; a new one where it is of none that is known."""
        job = self.jobs.get(key)
        if job is None:
            return self._new_job(key, run, source, row, now)
        if job.run == run:
            return job
        if not job.running and (row.state == "running" or run > job.run):
            return self._replace(key, self._made(run, source, row, now))
        if row.state != "running":
            return Refusal.OVER
        return self._challengers.setdefault(key, {}).setdefault(run, self._made(run, source, row, now))

    def _new_job(self, key: JobKey, run: Run, source: str, row: RankRow, now: float) -> Job | Refusal:
        if not self._make_room(self._jobs_held, key.owner, source):
            return Refusal.NO_ROOM
        job = self.jobs[key] = self._made(run, source, row, now)
        self._keys_of_owner.setdefault(key.owner, {})[key] = None
        self._jobs_held.add(key.owner, source)
        return job

    def _made(self, run: Run, source: str, row: RankRow, now: float) -> Job:
        return Job(run, source, now, now, self._last_ran(row, now, now))

    def _last_ran(self, row: RankRow, now: float, unknown: float) -> float:
        """The time at which the rank's process last ran, on the clock of `now`; `unknown` where its agent does not tell
        the time. To a collector that has just started, the steps in the file of a rank that ended are new, however long
        ago that was."""
        if row.state == "running":
            return now
        if self._node_now is None:
            return unknown
        ended = max(row.last_progress_timestamp_seconds, row.end.at_seconds if row.end else 0.0)
        return now - max(0.0, self._node_now - ended)

    def _claim(self, key: JobKey, job: Job, source: str, row: RankRow, now: float) -> RankWindow | Refusal:
        """A new window for the rank, unless another agent has claimed it or there are too many ranks."""
        rank = job.ranks.get(row.rank)
        goes_on = rank is not None and rank.newest.state == "running"
        contested = goes_on and row.state == "running" and rank is not None and rank.reporter != self._reporter
        if rank is not None and goes_on and now - rank.updated_at < CLAIM_SECONDS:
            if contested:
                rank.rival, rank.contested = self._reporter[0], CONTESTED_ANSWERS
            return Refusal.CLAIMED
        if rank is not None:
            self._ranks_held.add(key.owner, rank.source, -1)
        elif not self._make_room(self._ranks_held, key.owner, source, but=key):
            return Refusal.NO_ROOM
        self._ranks_held.add(key.owner, source)
        window = job.ranks[row.rank] = RankWindow(source, row, now, self._asked_at, reporter=self._reporter)
        if rank is not None and contested:  # it may have moved; but a round may also take longer than a claim holds
            window.rival, window.contested = rank.reporter[0], CONTESTED_ANSWERS
        return window

    # Which run of a job is shown.

    def _note_agent(self, key: JobKey, source: str, run: Run | None, now: float) -> None:
        """Notes that the agent reports `run` of the job as running; None: no run of it."""
        job = self.jobs.get(key)
        if job is None:
            return
        job.agents.pop(source, None)
        if run == job.run:
            job.agents[source] = now
        for other, challenger in list(self._challengers.get(key, {}).items()):
            if run == other:
                challenger.agents[source] = now
            else:
                challenger.agents.pop(source, None)
                self._drop_ranks(key, challenger, [n for n, rank in challenger.ranks.items() if rank.source == source])
        self._settle(key)

    def _settle(self, key: JobKey) -> None:
        """Lets another run take the job's place where more agents report it."""
        job, challengers = self.jobs.get(key), self._challengers.get(key)
        if job is None or not challengers:
            return
        run = max(challengers, key=lambda run: (len(challengers[run].agents), run))
        if len(challengers[run].agents) > (len(job.agents) if job.running else 0):
            self._replace(key, challengers.pop(run))
            if not challengers:
                del self._challengers[key]

    def _replace(self, key: JobKey, successor: Job) -> Job:
        """Puts another run, which counts its own ranks already, in the place of the one held."""
        old = self.jobs[key]
        self._count_out(key, old)
        self._jobs_held.add(key.owner, old.agent, -1)
        self._jobs_held.add(key.owner, successor.agent)
        self.jobs[key] = successor
        return successor

    # Room.

    def _make_room(self, held: holdings.Held, owner: int, source: str, but: JobKey | None = None) -> bool:
        """Whether there is room for another job, or for another rank of the job `but`; where there is none, another
        gives way, if that is fair."""
        if held.of_agent[source] >= held.most_of_agent:
            return self._make_room_at_agent(owner, source, but)
        if held.total < held.most:
            return True
        memo = "rank" if but else "job", owner
        if memo in self._full_for:
            return False
        gives_way = holdings.who_gives_way(held.of_owner, owner)
        loser = owner if gives_way is None else gives_way
        if self._drop_over(("over", loser), self._keys_of_owner.get(loser, ()), but):
            return True
        if gives_way is None:
            self._full_for.add(memo)
            return False
        newest = next(reversed(self._keys_of_owner[gives_way]))
        if but is None:
            self._drop_job(newest)
        else:
            self._drop_ranks(newest, self.jobs[newest], [next(reversed(self.jobs[newest].ranks))])
        return held.total < held.most

    def _make_room_at_agent(self, owner: int, source: str, but: JobKey | None) -> bool:
        """Drops one of the jobs that this agent brought, for another of `owner`, if that is fair."""
        if ("agent", owner) in self._full_for:
            return False
        keys = [key for key, job in self.jobs.items() if job.agent == source and key != but]
        if self._drop_over(("agent's over", 0), keys):
            return True
        gives_way = holdings.who_gives_way(Counter(key.owner for key in keys), owner)
        if gives_way is None:
            self._full_for.add(("agent", owner))
            return False
        self._drop_job(next(key for key in reversed(keys) if key.owner == gives_way))
        return True

    def _drop_over(self, memo: tuple[str, int], keys: Iterable[JobKey], but: JobKey | None = None) -> bool:
        """Drops the job that ended, or was last reported, the longest ago. Returns whether there is one; where there
        is none, it is not looked for again while this answer is ingested, by the name `memo`."""
        if memo in self._full_for:
            return False
        over = [key for key in keys if key != but and self._is_over(key)]
        if over:
            self._drop_job(min(over, key=lambda key: self.jobs[key].recency))
        else:
            self._full_for.add(memo)
        return bool(over)

    def _is_over(self, key: JobKey) -> bool:
        job = self.jobs[key]
        return not job.running or (key not in self._reported and self._now - job.updated_at > CLAIM_SECONDS)

    def _count_out(self, key: JobKey, job: Job) -> None:
        for rank in job.ranks.values():
            self._ranks_held.add(key.owner, rank.source, -1)

    def _drop_ranks(self, key: JobKey, job: Job, numbers: Iterable[int]) -> None:
        """Drops ranks of a job, or of another run of it, and the run itself where no rank is left."""
        for number in numbers:
            self._ranks_held.add(key.owner, job.ranks.pop(number).source, -1)
        if not job.ranks:
            if self.jobs.get(key) is job:
                self._drop_job(key)
            else:
                self._drop_challenger(key, job.run)

    def _drop_job(self, key: JobKey) -> None:
        job = self.jobs.pop(key)
        self._jobs_held.add(key.owner, job.agent, -1)
        for run in list(self._challengers.get(key, {})):
            self._drop_challenger(key, run)
        self._count_out(key, job)
        keys = self._keys_of_owner[key.owner]
        del keys[key]
        if not keys:
            del self._keys_of_owner[key.owner]

    def _drop_challenger(self, key: JobKey, run: Run) -> None:
        challengers = self._challengers.get(key, {})
        challenger = challengers.pop(run, None)
        if challenger is None:
            return
        self._count_out(key, challenger)
        if not challengers:
            del self._challengers[key]


def _newest(
    ranks: Iterable[tuple[RankRow, Table]],
) -> Iterable[tuple[RankRow, Table]]:
    """One row, with its steps, for each rank: a node may still hold the file of an attempt, or of a process, that is
    over."""
    ascending = sorted(ranks, key=lambda it: _recency(it[0]))
    return {(row.owner, row.job_id, row.rank): (row, steps) for row, steps in ascending}.values()


def _recency(row: RankRow) -> tuple[int, bool, float]:
    return row.attempt, row.state == "running", row.last_progress_timestamp_seconds
