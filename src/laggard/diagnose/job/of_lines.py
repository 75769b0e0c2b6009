"""What one line of a job's output tells, as an event: by a rule, by an exception's name; who wrote it, and whose it is.
Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from laggard.diagnose.job import lines
from laggard.diagnose.job.events import Event, Group, Place, Rule, Weight, Writer
from laggard.diagnose.job.rules import reason_rule

_NCCL_HEAD = re.compile(r"([A-Za-z0-9][\w.-]{0,252}):\d+:\d+ \[-?\d+\] ")
_OWN_NUMBER = re.compile(r"\[(?:(PG [^\]]{0,120}?) )?Rank (\d{1,7})\]")
_GROUP = re.compile(r"PG(?: ID)? (\d{1,9})(?: PG GUID (\d{1,9}))?(?: ?\(([^()]{1,80})\))?")


def event_of(rule: Rule, line: lines.JobLine, place: Place) -> Event:
    match = rule.pattern.match(line.text) or rule.pattern.match(line.logged)
    groups = [(group or "").strip() for group in match.groups()] if match else []
    is_bare = rule.weight is Weight.DIED and rule.pattern.match(line.text.split(" (")[0]) and _is_bare(line)
    accused = tuple(map(int, re.findall(r"\d{1,7}", groups[0])[:64])) if rule.kind == "monitored" else ()
    return Event(
        rule.code,
        "bare" if is_bare else rule.kind,
        rule.weight,
        _said(rule, line.text, line.logged)[:400],
        line.text,
        place,
        _named(match.groupdict() if match else {}, writer_of(line)),
        accused=accused,
    )


def _named(fields: Mapping[str, str | None], writer: Writer) -> Writer:
    """The writer with the rank and the host that a rule's pattern names as those of the failure."""
    rank, host = fields.get("rank"), fields.get("host")
    return writer._replace(rank=int(rank[:7]) if rank else writer.rank, host=host or writer.host)


def exception_event(line: lines.JobLine, place: Place) -> Event:
    return Event("JOB_EXCEPTION", "exception", Weight.FAILED, line.text[:400], line.text, place, writer_of(line))


def with_reason(event: Event, reason: str) -> Event:
    """The event with the reason that NCCL gave below `Last error:`; where that is a known one, of its code and kind."""
    rule = reason_rule(reason)
    if rule is None or event.kind not in ("nccl_system", "nccl_usage"):
        return event._replace(summary=f"{event.summary}: {reason}")
    summary = f"{_said(rule, f'NCCL WARN {reason}')}: {reason}"
    return event._replace(code=rule.code, kind=rule.kind, weight=rule.weight, summary=summary[:400])


def _said(rule: Rule, *texts: str) -> str:
    match = next(filter(None, map(rule.pattern.match, texts)), None)
    groups = [(group or "").strip() for group in match.groups()] if match else []
    return rule.summary.format(*groups, *[""] * 4).strip().rstrip(":. ")


def with_hosts(events: tuple[Event, ...]) -> tuple[Event, ...]:
    """The events with the host of their rank, where Megatron's rerun machine names it after them."""
    hosts = {it.writer.rank: it.writer.host for it in events if it.kind == "rerun" and it.writer.host}
    named = (it.writer._replace(host=it.writer.host or hosts.get(it.writer.rank)) for it in events)
    return tuple(it._replace(writer=writer) for it, writer in zip(events, named, strict=True)) if hosts else events


def with_rank(event: Event) -> Event:
    """The same of a job on one node, on which a local rank is a rank."""
    own = event.writer
    return (
        event
        if own.rank is not None or own.local_rank is None
        else event._replace(writer=own._replace(rank=own.local_rank))
    )


def _is_bare(line: lines.JobLine) -> bool:
    return len(line.text) < 40 and line.rank is None and line.task is None and ":" not in line.text


def group_of(text: str) -> Group:
    """The group of `PG ID 3 PG GUID 12(DATA_PARALLEL_GROUP)`, `PG ID 0 PG GUID 0`, `PG 3`, `PG 0 (default_pg)`. The ID
    is the group's place in a process's own list: without a GUID or a name there is nothing better."""
    match = _GROUP.match(text)
    if match is None:
        return Group(text.strip())
    index, guid, name = match[1], match[2] or "", match[3] or ""
    return Group(name or f"PG {guid or index}", guid)


def writer_of(line: lines.JobLine) -> Writer:
    rank = line.rank
    if rank is None and (match := _OWN_NUMBER.search(line.text[:240])):
        rank = int(match[2]) if match[1] is None or group_of(match[1]).is_default else None
    host = line.host
    if host is None and (match := _NCCL_HEAD.match(line.text)):
        host = match[1]
    return Writer(rank, line.task, line.local_rank, host)
