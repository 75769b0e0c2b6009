"""One of several collectors that share the jobs of a Prometheus: judges its own, and answers for all.

A look judges its jobs, once a round; a beat exchanges verdicts with the others through the database, every few seconds.
Where jobs have moved here, the next look is at once. Nothing but the database is between evaluators.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from msgspec import structs

from laggard.collector import shared_verdicts as shared
from laggard.collector.incidents.incident import Incident
from laggard.collector.incidents.reads import read_of_jobs
from laggard.collector.incidents.schema import DatabaseError
from laggard.collector.incidents.tracker import Moved
from laggard.collector.jobs.snapshot import JobSnapshot, unknown_location
from laggard.collector.prometheus.choice import Known, known_jobs
from laggard.collector.prometheus.client import Prometheus
from laggard.collector.prometheus.watch import MAX_JOBS, by_key, judged, snapshot_of
from laggard.kit.errors import UsageError
from laggard.kit.words import printable_line
from laggard.model import JobKey, Note, Verdict

log = logging.getLogger("laggard.collector")

RETRY_SECONDS: Final = 2.0
"""The longest time until Prometheus is asked again that did not answer, or had too few new samples when it did."""

CATCH_UP_SECONDS: Final = 300.0
"""The time after Prometheus was away, or a job lost its verdict, for which jobs without one are looked at so soon: ten
scrapes 30 s apart. Prometheus may be started again between two looks."""

LOOK_SHARE: Final = 1 / 2
"""The largest share of that time in which looks are under way: the rest is Prometheus' to catch up."""

QUERY_SECONDS: Final = 20.0
"""The time limit of an evaluator's query: a later answer would come when the verdict of before is too old."""

PROBE_SECONDS: Final = 3.0
"""The time in which Prometheus has to answer the least of questions to count as there."""

SETTLE_SECONDS: Final = 30.0
"""The time for which whoever watched a job before may still write of it: a beat, a round, and what the database takes.
laggard's estimate. So long what it wrote is read again: an incident goes on if somebody saw it after it was closed."""

REMEMBER_SECONDS: Final = 86400.0
"""The age up to which closed incidents of a job go with it: as long as it may be reported after its end."""

_LEAVE_SECONDS: Final = 2.0


class Turn(NamedTuple):
    """The jobs whose incidents this evaluator follows now, with their verdicts, and which of them moved here or away
    since the turn before."""

    jobs: tuple[JobSnapshot, ...]
    moved: Moved


class Evaluator:
    """A watch, as PrometheusWatch is one. `jobs`, `notes` and `turn` may be asked by any thread."""

    def __init__(self, prometheus: Prometheus, place: shared.Place, round_seconds: float, max_jobs: int) -> None:
        """`round_seconds`: from one look to the next. `max_jobs`: the most jobs of all evaluators together. `on_news`
        is called on the event loop where a verdict has changed, whoever judged."""
        self.on_news: Callable[[], None] = lambda: None
        self._prometheus, self._round_seconds, self._max_jobs = prometheus, round_seconds, max_jobs
        self._exchange, self._one_beat = shared.Exchange(place, max_jobs), threading.Lock()
        self._url = place.url
        self._lock = threading.Lock()
        self._standing = shared.Standing(shared.Members())
        self._unwritten: set[JobKey] = set()
        self._gone: set[JobKey] = set()
        self._followed: dict[JobKey, float] = {}  # since when, in monotonic seconds
        self._released: set[JobKey] = set()
        self._inherited: dict[int, Incident] = {}
        self._live: tuple[str, ...] = ()
        self._read_at = time.monotonic() - shared.LEASE_SECONDS
        self._away = "it has not answered yet"
        self._has_listed, self._failing_since, self._problem = False, float("inf"), ""
        self._waiting_since = float("inf")  # for an answer of Prometheus
        self._catches_up_until = float("-inf")
        self._partial = ""  # what Prometheus said that it left out
        self._ends, self._begun = threading.Event(), threading.Event()
        self._wants_look, self._wants_beat = threading.Event(), threading.Event()

    @property
    def up(self) -> bool:
        """Whether Prometheus answered last."""
        return self._has_listed and not self._problem

    @property
    def jobs(self) -> tuple[JobSnapshot, ...]:
        """All evaluators' jobs."""
        with self._lock:
            return self._jobs()

    def _jobs(self) -> tuple[JobSnapshot, ...]:
        now = time.monotonic()
        standing = dataclasses.replace(self._standing, away=self._why_away(now))
        return standing.jobs(now, self._round_seconds, self._max_jobs)

    @property
    def live(self) -> int:
        """The number of evaluators that are alive; 0 where the database does not answer."""
        with self._lock:
            return 0 if self._why_away(time.monotonic()) else len(self._live)

    @property
    def why_not_ready(self) -> str:
        """The reason why it does not answer for all evaluators; empty where it does."""
        with self._lock:
            return self._why_away(time.monotonic())

    @property
    def notes(self) -> tuple[Note, ...]:
        with self._lock:
            now = time.monotonic()
            away, problem, partial = self._why_away(now), self._problem, self._partial
            if not problem and self._keeps_waiting(now):
                problem = f"Prometheus has not answered for {now - self._waiting_since:.0f} s"
        found = [Note("prometheus", f"this evaluator judges nothing: {problem}")] if problem else []
        if partial:
            found.append(Note("prometheus", f"the answer is not whole, jobs may be missing: {partial}"))
        if away:
            found.append(Note("evaluators", f"only jobs of this evaluator have a verdict: {away}"))
        return tuple(found)

    def _why_away(self, now: float) -> str:
        """The reason why what was read of others is too old; empty where it is not."""
        silent = now - self._read_at > shared.LEASE_SECONDS
        return f"the database: {self._away or f'no answer for {now - self._read_at:.0f} s'}" if silent else ""

    def turn(self) -> Turn:
        """Returns what the incidents' history is to take in. A move is told of once."""
        with self._lock:
            jobs = tuple(job for job in self._jobs() if job.key in self._followed)
            incidents = tuple(it for it in self._inherited.values() if it.key in self._followed)
            moved = Moved(frozenset(self._released - self._followed.keys()), incidents)
            self._released, self._inherited = set(), {}
            return Turn(jobs, moved)

    async def begun(self, seconds: float) -> None:
        """Waits until it knows what the others judged, so many seconds at most: the first answers are no `unknown`."""
        await asyncio.to_thread(self._begun.wait, seconds)

    async def run(self) -> None:
        """Looks and beats for ever, in threads for which the end of the process does not wait: a database may hang."""
        tell = partial(asyncio.get_running_loop().call_soon_threadsafe, lambda: self.on_news())
        threading.Thread(target=self._look_for_ever, name="evaluator", daemon=True).start()
        threading.Thread(target=self._beat_for_ever, args=(tell,), name="evaluator", daemon=True).start()
        try:
            await asyncio.Event().wait()
        finally:
            self._ends.set()
            leaving = threading.Thread(target=self.leave, name="evaluator", daemon=True)
            leaving.start()
            await asyncio.to_thread(leaving.join, _LEAVE_SECONDS)

    def _look_for_ever(self) -> None:
        while not self._ends.is_set():
            began = time.monotonic()
            _safely(self.look)
            self._wants_look.clear()  # behind it: what it judges just now is no news; a beat tells of what is left
            self._wants_beat.set()
            now = time.monotonic()
            self._wants_look.wait(max(0.0, began + self._pause_seconds(now, now - began) - now))

    def _pause_seconds(self, now: float, lasted: float) -> float:
        """The time from the last look, which lasted so many seconds, to the next."""
        if not self.up:
            return min(self._round_seconds, RETRY_SECONDS)
        if now < self._catches_up_until and self._lacks_verdicts():
            return min(self._round_seconds, max(RETRY_SECONDS, lasted / LOOK_SHARE))
        return self._round_seconds

    def _lacks_verdicts(self) -> bool:
        """Whether jobs of its own that were looked at have none."""
        with self._lock:
            own, members = self._standing.own, self._standing.members
            mine = [it.job.location for key, it in own.items() if members.is_mine(key)]
        return any(
            it.verdict is Verdict.UNKNOWN and it.notes[:1] and it.notes[0].kind != shared.NOT_JUDGED for it in mine
        )

    def _beat_for_ever(self, tell: Callable[[], object]) -> None:
        told: dict[JobKey, object] = {}
        while not self._ends.is_set():
            self._wants_beat.clear()  # first: a look that ends meanwhile is of the next beat
            _safely(self.beat)
            if not self._why_away(time.monotonic()):
                self._begun.set()
            if (verdicts := self._verdicts()) != told:
                told = verdicts
                with contextlib.suppress(RuntimeError):  # the event loop has ended
                    tell()
            if self._has_news():
                self._wants_look.set()
            self._wants_beat.wait(shared.BEAT_SECONDS)

    def _verdicts(self) -> dict[JobKey, object]:
        """What is said of each job, as far as it is no matter of age."""
        standing = self._standing
        said = {key: it.job.location for key in standing.job_keys() if (it := standing.newest(key))}
        return {key: (it.verdict, [culprit.ranks for culprit in it.culprits]) for key, it in said.items()}

    def _has_news(self) -> bool:
        """Whether jobs are its own that it has not judged."""
        with self._lock:
            standing = self._standing
            return any(standing.members.is_mine(key) and key not in standing.own for key in standing.known)

    def look(self) -> None:
        """Lists the jobs, and judges its own; may take seconds."""
        self._prometheus.warnings.clear()
        self._waiting_since = time.monotonic()
        try:
            self._look()
        except UsageError as error:
            log.error("%s", error)
            with self._lock:
                self._failing_since = min(self._failing_since, time.monotonic())
                self._problem = str(error)
            return
        finally:
            self._waiting_since = float("inf")
        with self._lock:
            if self._problem:
                self._catches_up_until = time.monotonic() + CATCH_UP_SECONDS
            self._failing_since, self._problem = float("inf"), ""

    def _look(self) -> None:
        """Raises UsageError."""
        found = by_key(known_jobs(self._prometheus, None, None))
        self._note_known({key: alike[0].progressed_at for key, alike in found.items()})
        mine = [key for key in found if self._standing.members.is_mine(key)]
        for key in mine[:MAX_JOBS]:
            if self._ends.is_set():
                return
            self._judge(key, found[key])
        at = time.monotonic()
        for job in shared.not_looked_at(mine[MAX_JOBS:], self._standing.known, MAX_JOBS):
            self._note(shared.Judged(job, at, self._standing.members.me))

    def _judge(self, key: JobKey, alike: Sequence[Known]) -> None:
        """Judges the job; without a verdict where the questions about it alone get no answer, as of a job that is too
        large for Prometheus' limits: the others are to have theirs. Raises UsageError where Prometheus is away."""
        at, me = time.monotonic(), self._standing.members.me
        if not self._standing.members.is_mine(key):  # it has moved meanwhile
            return
        try:
            job = judged(self._prometheus, key, alike)
        except UsageError as error:
            if not self._prometheus.answers(PROBE_SECONDS):
                raise
            log.error("job %s: %s", printable_line(key.job_id, 100), error)
            location = structs.replace(unknown_location("stale", str(error), key.job_id), owner=key.owner)
            job = snapshot_of(key, location, alike[0].progressed_at)
        self._waiting_since = time.monotonic()
        self._note(shared.Judged(dataclasses.replace(job, location=shared.bounded(job.location)), at, me))

    def _note_known(self, known: dict[JobKey, float]) -> None:
        """Takes the jobs that there are, and when each got on last. Where the answer is not whole, those of before are
        not gone."""
        partial = self._prometheus.warnings[:1]
        with self._lock:
            was = self._standing
            self._partial = partial[0] if partial else ""
            known = {**was.known, **known} if partial else known
            mine = {key for key in (*was.own, *was.rows) if was.members.is_mine(key)}
            self._gone = (self._gone | mine) - known.keys()
            own = {key: it for key, it in was.own.items() if key in known and key in mine}
            rows = {key: it for key, it in was.rows.items() if key not in self._gone}
            self._standing = dataclasses.replace(was, known=known, own=own, rows=rows)
            self._has_listed = True

    def _note(self, it: shared.Judged) -> None:
        with self._lock:
            before = self._standing.own.get(it.job.key)
            if before and _is_unknown(it) and not _is_unknown(before):
                self._catches_up_until = time.monotonic() + CATCH_UP_SECONDS
            self._standing = dataclasses.replace(self._standing, own={**self._standing.own, it.job.key: it})
            self._unwritten.add(it.job.key)

    def beat(self) -> None:
        """Exchanges verdicts with the others; may take seconds."""
        with self._one_beat:
            if self._ends.is_set():
                return
            with self._lock:
                was = self._standing
                due = [was.own[key] for key in self._unwritten if key in was.own]
                gone = set(self._gone)
            try:
                found = self._exchange.beat(self._is_able(), due, sorted(gone))
                self._take(found, due, gone)
            except DatabaseError as error:
                self._note_away(error)

    def _is_able(self) -> bool:
        """Whether it can judge: Prometheus has answered it, has not failed it for long, and does not keep it waiting.
        May take seconds."""
        now = time.monotonic()
        if not self._has_listed or now - self._failing_since >= shared.LEASE_SECONDS:
            return False
        return not self._keeps_waiting(now) or self._prometheus.answers(PROBE_SECONDS)

    def _keeps_waiting(self, now: float) -> bool:
        """Whether a look has waited for Prometheus for longer than a lease: it is slow, or is out of reach."""
        return now - self._waiting_since > shared.LEASE_SECONDS

    def _take(self, found: shared.Beat, due: Iterable[shared.Judged], gone: set[JobKey]) -> None:
        """Takes what a beat found. Raises DatabaseError."""
        members = self._standing.members.after(found.live, found.me, found.back_seconds)
        with self._lock:
            standing = dataclasses.replace(self._standing, members=members, rows=found.rows)
            now = time.monotonic()
            mine = {key: self._followed.get(key, now) for key in standing.job_keys() if members.is_mine(key)}
            gained = [key for key, since in mine.items() if now - since <= SETTLE_SECONDS]
        inherited = read_of_jobs(self._url, gained, time.time() - REMEMBER_SECONDS) if gained else ()
        rows = dict(found.rows)
        is_back = found.back_seconds < shared.LEASE_SECONDS  # what was there may be gone: who judged stores it
        with self._lock:
            was = self._standing
            if is_back:
                rows = {**was.rows, **rows}
            if members.names != was.members.names:
                log.info("evaluators among whom the jobs are shared: %s", ", ".join(members.names) or "none")
            self._released |= {key for key in self._followed if not members.is_mine(key)}
            self._followed = mine
            self._inherited |= {it.id: it for it in inherited}
            self._standing = dataclasses.replace(was, members=members, rows=rows)
            self._unwritten -= {it.job.key for it in due if was.own.get(it.job.key) is it}
            if is_back:
                self._unwritten = set(was.own)
            self._gone -= gone
            self._live, self._read_at, self._away = found.live, time.monotonic(), ""

    def _note_away(self, error: DatabaseError) -> None:
        """The database is away: this evaluator goes on with the jobs that it had, and follows those of them that
        begin."""
        with self._lock:
            if not self._away:
                log.error("verdicts are not exchanged: %s", error)
            self._away = str(error)
            now, standing = time.monotonic(), self._standing
            self._followed |= {
                key: self._followed.get(key, now) for key in standing.job_keys() if standing.members.is_mine(key)
            }

    def leave(self) -> None:
        """Gives its jobs to the others at once."""
        if self._one_beat.acquire(timeout=_LEAVE_SECONDS):
            try:
                with contextlib.suppress(DatabaseError):
                    self._exchange.leave()
            finally:
                self._one_beat.release()


def _is_unknown(it: shared.Judged) -> bool:
    return it.job.location.verdict is Verdict.UNKNOWN


def _safely(do: Callable[[], None]) -> None:
    try:
        do()
    except Exception:  # one that failed must not be the last
        log.exception("a defect in laggard: a round of this evaluator was lost")
