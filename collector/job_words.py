"""Jobs by what people know them by: the user, the script and when it began; a launcher's own number comes last, for
`--job`. The page does the same (page/jobs.js)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timezone

from laggard import wire
from laggard.collector.ask import answer, user_text
from laggard.collector.jobs.job import JobKey
from laggard.collector.web.documents import JobLine, SummaryDocument
from laggard.errors import UsageError
from laggard.text.words import printable_line

_NUMBER = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}|[0-9a-f]{16,}")  # torchrun's UUIDs, hashes
_LONGEST = 300


def job_text(job_id: str | None, owner: int, known: JobLine | None) -> str:
    """``train.py of user ann, started 2026-11-25 07:24 UTC, `--job 8f14e45f-...` ``; where somebody gave it a name,
    `nightly of user ann`. `known`: what the collector says of it."""
    short = short_text(job_id, owner, known)
    if not known or not _is_told_by_script(known):
        return short
    started = f", started {_minute(known.started_at)}" if known.started_at else ""
    return printable_line(f"{short}{started}, `--job {job_id}`", _LONGEST)


def short_text(job_id: str | None, owner: int, known: JobLine | None) -> str:
    """`train.py of user ann`: where its whole name follows elsewhere."""
    user = f"user {known.user}" if known and known.user else user_text(owner)
    name = known.script if known and _is_told_by_script(known) else job_id
    return printable_line(f"{name} of {user}", _LONGEST)


def _is_told_by_script(known: JobLine) -> bool:
    return bool(known.script and _NUMBER.fullmatch(known.job_id))


def known_jobs(url: str) -> Mapping[JobKey, JobLine]:
    """The jobs that the collector at `url` holds; none where it cannot say: what asks has its answer already."""
    try:
        with answer(url, "summary", {}) as found:
            return by_key(wire.decode(found.read(), SummaryDocument))
    except (UsageError, wire.WireError):
        return {}


def by_key(summary: SummaryDocument) -> dict[JobKey, JobLine]:
    return {JobKey(line.owner, line.job_id): line for line in summary.jobs}


def _minute(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M} UTC"
