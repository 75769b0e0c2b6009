"""The body that a webhook is sent: `laggard.notification/1`, or one line of text in the form that Slack, Mattermost and
those like them show."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from laggard.collector.incidents.incident import REASONS, Incident
from laggard.collector.incidents.notice import CLOSED, OPENED, Notice
from laggard.collector.jobs.job import JobKey
from laggard.model import Location
from laggard.text.words import capital, printable_line
from laggard.wire import encode

JSON: Final = "json"
TEXT: Final = "text"
FORMS: Final = (JSON, TEXT)

MAX_TEXT: Final = 2000
"""Characters of the line; Slack advises 4,000 at most, of which an escaped character takes up to five."""

_BREAK: Final = "\u200b"
"""A space without width: what it stands in is shown as it was, and is no markup any more."""


class NotifiedJob(Struct, frozen=True):
    """The job of an incident. `user`: its owner's name on the collector's machine; empty where that has none."""

    key: str
    owner: int
    job_id: str
    user: str = ""
    script: str = ""
    started_at: float | None = None


class Notification(Struct, frozen=True, kw_only=True):
    """One thing that is told of an incident. `id` is the same however often it is sent, and never another one's.
    `event`: `opened`, `changed` (its culprit is another) or `closed`. `at`: when, Unix seconds on the collector's
    clock. `verdict`: that on the job, then; null where the job was gone. `text`: the same in one line."""

    id: str
    event: str
    at: float
    text: str
    job: NotifiedJob
    incident: Incident
    verdict: Location | None = None
    schema: str = "laggard.notification/1"


def json_body(notice: Notice, user: str) -> bytes:
    """`user`: the name of the job's owner; empty where it is not known."""
    it = notice.incident
    job = NotifiedJob(str(JobKey(it.owner, it.job_id)), it.owner, it.job_id, user, notice.script, notice.started_at)
    return encode(
        Notification(
            id=notice.id,
            event=notice.event,
            at=notice.at,
            text=line(notice, user),
            job=job,
            incident=it,
            verdict=notice.verdict,
        )
    )


def text_body(notice: Notice, user: str) -> bytes:
    return encode({"text": without_markup(line(notice, user))})


def line(notice: Notice, user: str) -> str:
    """`Incident opened: rank 3 on n1 is slow; job 812 of alice. What to do: ...`."""
    it = notice.incident
    whose = f" of {user}" if user else f" of uid {it.owner}"
    words = f"Incident {_event_text(notice)}: {it.what}; job {it.job_id}{whose}"
    if notice.script:
        words += f" ({notice.script})"
    if notice.event != CLOSED and it.culprit.advice:
        words += f". What to do: {capital(it.culprit.advice)}"
    return printable_line(words, MAX_TEXT)


def _event_text(notice: Notice) -> str:
    if notice.event == OPENED:
        return "opened"
    if notice.event == CLOSED:
        why = REASONS.get(notice.incident.closed_because or "", "")
        return f"closed, {why}" if why else "closed"
    return "has another culprit"


def without_markup(text: str) -> str:
    """The text as receivers show it that take Slack's form: names of jobs and scripts are users' own, and are to call
    nobody and to link to nothing. Slack takes `&`, `<` and `>` as entities alone; Mattermost links `[text](address)`
    and calls for `@channel` in plain text."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return escaped.replace("@", f"@{_BREAK}").replace("](", f"]{_BREAK}(").replace("://", f":{_BREAK}//")
