"""Jobs by what people know them by: the user, the script and when it began; a launcher's own number comes last, for
`--job`. The page does the same (page/jobs.js). And how commands ask a collector for a document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from laggard import wire
from laggard.collector.web.documents import JobLine, SummaryDocument
from laggard.kit.address import without_login
from laggard.kit.collector_client import answer
from laggard.kit.errors import CannotTell, UsageError
from laggard.kit.users import user_text
from laggard.kit.words import counted, printable_line
from laggard.model import JobKey, Verdict
from laggard.wire.job_words import MAX_CHARACTERS, is_numbered, minute_text

Document = TypeVar("Document")

_MAX_OTHERS = 4
_SHORT_NUMBER = 12  # letters of a launcher's number, which --job takes for it


def job_text(job_id: str | None, owner: int, known: JobLine | None) -> str:
    """``train.py of user ann, started 2026-11-25 07:24 UTC, `--job 8f14e45f-...` ``; where somebody gave it a name,
    `nightly of user ann`. `known`: what the collector says of it."""
    short = short_text(job_id, owner, known)
    if not known or not _is_told_by_script(known):
        return short
    started = f", started {minute_text(known.started_at)}" if known.started_at else ""
    return printable_line(f"{short}{started}, `--job {job_id}`", MAX_CHARACTERS)


def other_jobs(known: Mapping[JobKey, JobLine], shown: JobKey) -> list[str]:
    """Lines that say which other jobs a collector holds: those that run, each with its answer; empty where there are
    none."""
    others = [line for key, line in known.items() if key != shown]
    running = sorted((line for line in others if line.running), key=lambda line: line.verdict is not Verdict.FAIL)
    if not running:
        return [f"{counted(len(others), 'more job')}, ended: choose with --job"] if others else []
    lines = [f"{counted(len(running), 'more job')} that {'run' if len(running) > 1 else 'runs'}, choose with --job:"]
    for line in running[:_MAX_OTHERS]:
        short = line.job_id[:_SHORT_NUMBER] if is_numbered(line.job_id) else line.job_id
        name = short_text(line.job_id, line.owner, line)
        lines.append(printable_line(f"--job {short}: {name}: {line.sentence}", MAX_CHARACTERS))
    return lines + ([f"and {len(running) - _MAX_OTHERS} more"] if len(running) > _MAX_OTHERS else [])


def short_text(job_id: str | None, owner: int, known: JobLine | None) -> str:
    """`train.py of user ann`: where its whole name follows elsewhere."""
    user = f"user {known.user}" if known and known.user else user_text(owner)
    name = known.script if known and _is_told_by_script(known) else job_id
    return printable_line(f"{name} of {user}", MAX_CHARACTERS)


def _is_told_by_script(known: JobLine) -> bool:
    return bool(known.script and is_numbered(known.job_id))


OTHER_VERSION: Final = "the collector at {} is of another version"


def ask_for(
    url: str,
    name: str,
    query: Mapping[str, str],
    kind: type[Document],
    wrong: str = "what answers at {} is not a laggard collector",
) -> Document:
    """The collector's document of that name. `wrong`: what is said where it is none. Raises UsageError."""
    with answer(url, name, query) as found:
        try:
            return wire.decode(found.read(), kind)
        except wire.WireError as error:
            raise CannotTell(f"{wrong.format(without_login(url))}: {error}") from None


def known_jobs(url: str) -> Mapping[JobKey, JobLine]:
    """The jobs that the collector at `url` holds; none where it cannot say: what asks has its answer already."""
    try:
        return by_key(ask_for(url, "summary", {}, SummaryDocument))
    except UsageError:
        return {}


def by_key(summary: SummaryDocument) -> dict[JobKey, JobLine]:
    return {JobKey(line.owner, line.job_id): line for line in summary.jobs}
