"""Asks the ranks of this machine for their stacks, by a file in a folder that only this user, or root, can write."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple

from laggard.agent.ranks.reader import RankFiles
from laggard.agent.ranks.row import RankSnapshot
from laggard.agent.ranks.stacks import NoStacks, StackReader
from laggard.kit.environment import ENV_STACKS
from laggard.kit.errors import UsageError
from laggard.kit.users import user_text
from laggard.kit.words import counted, joined
from laggard.rankfile.fact_names import SCRIPT
from laggard.stacks.ask import FOLDER, VALID_SECONDS, Ask, new_ask, trusted_users, write_ask
from laggard.stacks.sampled import ASKED, Sampled
from laggard.wire.ranks import RankRow
from laggard.wire.stacks import MissingStacks

PATIENCE_SECONDS: Final = 25.0
"""The least time that a rank is waited for: faulthandler tells after 20 s where C code holds Python's lock."""

_LATE_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.5
_MAX_NAMED: Final = 8
_MAX_ENVIRON: Final = 256 << 10

Told = Callable[[float, str], None]
"""Gets the share of the time that is over, and what is waited for."""


class LocalJob(NamedTuple):
    owner: int
    job_id: str


class Gathered(NamedTuple):
    owner: int
    job_id: str
    sampled: dict[int, Sampled]
    missing: tuple[MissingStacks, ...]


def ask_node(
    files: RankFiles, name: str | None, ranks: Collection[int], samples: int, seconds: float, told: Told
) -> Gathered:
    """Asks the ranks of the job of that name, all where none is named, and waits. Raises UsageError where there is no
    such job of this user, or nowhere to ask."""
    rows = files.read().ranks
    job = choose_job(rows, name, os.geteuid())
    snapshots = files.snapshots_of(job.owner, job.job_id, frozenset(ranks) or None)
    missing = {rank: "it does not run on this machine" for rank in set(ranks) - {it.row.rank for it in snapshots}}
    able = {it.row.rank: it for it in snapshots}
    for rank, snapshot in list(able.items()):
        if reason := _why_not(snapshot.row):
            missing[rank] = reason
    waited_for = set(able) - set(missing)
    ask = new_ask(job.owner, job.job_id, frozenset(waited_for), samples, seconds)
    sampled = {} if not waited_for else _asked(files, job, ask, waited_for, told)
    for rank in waited_for - set(sampled):
        missing[rank] = _why_silent(files, job, rank, seconds)
    for rank in [rank for rank in missing if rank in able]:  # what it took by itself, before it ended or was stopped
        kept = _newest(files.directory, able[rank])
        if kept is not None and rank not in sampled and kept.why != ASKED:
            sampled[rank] = kept
            del missing[rank]
    reader = StackReader(files.directory)
    places = {rank: reader.kernel_text(able[rank].row) for rank in missing if rank in able}
    without = tuple(MissingStacks(rank, reason, places.get(rank, "")) for rank, reason in sorted(missing.items()))
    return Gathered(job.owner, job.job_id, sampled, without)


def choose_job(rows: Iterable[RankRow], name: str | None, user: int) -> LocalJob:
    """The user's job of that name, as NAME or UID:NAME, or of that script, or whose name begins so; of several the one
    that runs. Root's choice are all. Without a name: the only one that runs. Raises UsageError."""
    every = _jobs(rows)
    own = {job: about for job, about in every.items() if user in (0, job.owner)}
    found = _named(own, name) if name else [job for job, about in own.items() if about.runs]
    if len(found) > 1:
        found = [job for job in found if own[job].runs] or found
    if len(found) == 1:
        return found[0]
    if found:
        choices = joined([f"{job.owner}:{job.job_id}" for job in found[:_MAX_NAMED]])
        raise UsageError(f"{len(found)} jobs {'have that name' if name else 'run'} here; name one of them: {choices}")
    others = _named({job: about for job, about in every.items() if job not in own}, name) if name else []
    if others:
        raise UsageError(f"job {name} is {user_text(others[0].owner)}'s: its user asks, or root, or --collector")
    what = f"no job {name} of this user is seen on this machine" if name else "no job of this user runs here"
    raise UsageError(f"{what}{_known(own)}; name the rank directory (--rank-dir), or ask a collector (--collector)")


class _About(NamedTuple):
    runs: bool
    script: str


def _jobs(rows: Iterable[RankRow]) -> dict[LocalJob, _About]:
    every: dict[LocalJob, _About] = {}
    for row in rows:
        job, script = LocalJob(row.owner, row.job_id), row.facts.get(SCRIPT)
        before = every.get(job, _About(False, ""))
        name = script if isinstance(script, str) else ""
        every[job] = _About(before.runs or row.state == "running", before.script or name)
    return every


def _named(jobs: Mapping[LocalJob, _About], name: str) -> list[LocalJob]:
    """Those of exactly that name; else those of that script; else those whose name begins so."""
    owner, colon, rest = name.partition(":")
    of_owner = [job for job in jobs if colon and owner == str(job.owner)]
    exact = [job for job in jobs if name == job.job_id] + [job for job in of_owner if rest == job.job_id]
    wanted = rest if of_owner else name
    among = of_owner or list(jobs)
    by_script = [job for job in among if wanted and wanted == jobs[job].script]
    return exact or by_script or [job for job in among if wanted and job.job_id.startswith(wanted)]


def _known(jobs: Mapping[LocalJob, _About]) -> str:
    """The jobs that run, as people know them, and how many have ended."""
    running = [
        f"{job.job_id}{f' ({about.script})' if about.script else ''}" for job, about in jobs.items() if about.runs
    ]
    ended = len(jobs) - len(running)
    parts = [f"{joined(running[:_MAX_NAMED])} {'runs' if len(running) == 1 else 'run'}"] if running else []
    parts += [f"{counted(ended, 'job')} {'has' if ended == 1 else 'have'} ended"] if ended else []
    return f"; {', '.join(parts)}" if parts else ""


def _asked(files: RankFiles, job: LocalJob, ask: Ask, ranks: set[int], told: Told) -> dict[int, Sampled]:
    """Writes the ask, and what is answered to it until there is all, or nothing more comes. Raises UsageError."""
    _write(files.directory, ask)
    asked_at, began = time.time(), time.monotonic()
    found: dict[int, Sampled] = {}
    busy = False
    while True:
        files.read()
        for snapshot in files.snapshots_of(job.owner, job.job_id, frozenset(ranks - set(found))):
            newest = _newest(files.directory, snapshot)
            if newest is not None and (newest.ask == ask.ident or (newest.why != ASKED and newest.at > asked_at)):
                found[snapshot.row.rank] = newest
            busy = busy or (newest is not None and newest.why == ASKED and newest.at > asked_at - 2 * ask.seconds)
        running = set(files.ranks_of(job.owner, job.job_id, frozenset(ranks)))
        left = (ranks - set(found)) & running
        waited = time.monotonic() - began
        most = VALID_SECONDS + ask.seconds if busy else max(PATIENCE_SECONDS, ask.seconds)
        if not left or waited > most + _LATE_SECONDS:
            return found
        told(min(1.0, waited / ask.seconds), f"{len(ranks) - len(left)} of {len(ranks)} ranks have answered")
        time.sleep(_LOOK_SECONDS)


def _write(directory: str, ask: Ask) -> None:
    """Raises UsageError."""
    user = os.geteuid()
    base = directory if user == 0 else os.path.join(directory, str(user))
    folder = os.path.join(base, FOLDER)
    try:
        write_ask(folder, ask, trusted_users(directory) if user == 0 else frozenset({user}))
    except OSError as error:
        raise UsageError(f"cannot ask: {folder}: {error.strerror}") from None


def _newest(directory: str, snapshot: RankSnapshot) -> Sampled | None:
    try:
        return StackReader(directory).newest(snapshot)
    except NoStacks:
        return None


def _why_not(row: RankRow) -> str:
    """The reason why the rank cannot answer; empty where it may."""
    if row.state != "running":
        return "it has ended"
    if row.stopped:
        return "its process is stopped, by a signal or a debugger"
    if _variable(row.pid, ENV_STACKS) == "0":
        return f"{ENV_STACKS} is 0 there"
    return ""


def _why_silent(files: RankFiles, job: LocalJob, rank: int, seconds: float) -> str:
    rows = [it.row for it in files.snapshots_of(job.owner, job.job_id, frozenset({rank}))]
    if not rows or rows[0].state != "running":
        return "it ended meanwhile"
    reason = _why_not(rows[0])
    return reason or f"it did not answer within {max(PATIENCE_SECONDS, seconds):.0f} s: its laggard hangs"


def _variable(pid: int, name: str) -> str | None:
    """A variable with which the process was started; None where it has none, or hides it."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            words = file.read(_MAX_ENVIRON).split(b"\0")
    except OSError:
        return None
    key = f"{name}=".encode()
    return next((word[len(key) :].decode("ascii", "replace") for word in words if word.startswith(key)), None)
