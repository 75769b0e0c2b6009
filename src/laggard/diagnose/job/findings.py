"""Findings from what a job's output shows: one for the cause, with what came of it as evidence. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Final

import msgspec

from laggard.diagnose.entities import Entity, Side, suspects
from laggard.diagnose.job.cause import Cause, Waiting, consequences, find_cause, find_waiting, ranks_of
from laggard.diagnose.job.events import Event, JobEvidence, Weight, Writer
from laggard.diagnose.job.rules import ADVICE, BROAD
from laggard.diagnose.kinds import advice_for
from laggard.diagnose.rules import table
from laggard.kit.words import printable_line, ranks_text
from laggard.model import Finding, Fix, Severity
from laggard.probes.probe import finding

_WATCHDOG: Final = ("watchdog", "monitored")
MAX_ODD_SHARE: Final = 1 / 3
"""The largest share of the ranks that is named as those that called another collective than the others."""
_OF_ALL: Final = ("interrupted", "cancelled")
"""What somebody did to the whole job, whichever process says so."""
_STUCK: Final = ("watchdog_stuck", "engine_stuck")
"""Every rank that stands still says so."""
_MAX_LINE_CHARACTERS: Final = 300
_NOBODY: Final = "the job"
_SOMEBODY: Final = "a process"


def judge_job(evidence: JobEvidence) -> tuple[Finding, ...]:
    """Returns the cause of the job's end; and, as a warning, a loss that was NaN before it. None where nothing in the
    output says that the job failed."""
    cause = find_cause(evidence)
    found = [] if cause is None else [_finding(cause, evidence)]
    nan = evidence.nan
    if nan is not None and (cause is None or cause.first.code != "JOB_NAN_LOSS"):
        alone = cause is None or cause.first.weight <= Weight.STOPPED
        found.insert(0 if alone else 1, _nan_finding(nan, Severity.CRITICAL if alone else Severity.WARNING))
        if alone:
            del found[1:]
    return tuple(found)


def _finding(cause: Cause, evidence: JobEvidence) -> Finding:
    first = cause.first
    waits = find_waiting(evidence) if first.kind in _WATCHDOG else ()
    device, summary = said_of(cause, waits)
    advice = advice_of(first, evidence.settings)
    return finding(
        first.code,
        device,
        summary,
        evidence=_evidence(cause, waits),
        fix=advice.text,
        commands=(*(f"kubectl describe pod {pod}" for pod in _pods(first)), *advice.commands),
        severity=Severity.CRITICAL,
    )


def said_of(cause: Cause, waits: Sequence[Waiting]) -> tuple[str, str]:
    """Returns whom a cause is told of, and the rest of the sentence. `waits`: what the watchdogs of all ranks say."""
    first = cause.first
    if waits:
        return _waiting_text(waits[0], first)
    if first.kind == "mismatch" and (odd := _odd_ranks([first, *cause.same])):
        return ranks_text(odd), f"called another collective than the others: {printable_line(first.summary)}"
    if accused := sorted({rank for event in (first, *cause.same) for rank in event.accused}):
        return ranks_text(accused), f"did not come to a barrier of {who(first.writer)}"
    if first.kind in _STUCK and (stuck := ranks_of([first, *cause.same])):
        has = "has" if len(stuck) == 1 else "have"
        return ranks_text(sorted(stuck)), f"{has} stopped: {printable_line(first.summary)}"
    if suspect := suspect_of(first):
        return suspect, f"{_AS_TOLD[first.weight]}{_witness(first)}: {printable_line(first.summary)}"
    device = _NOBODY if first.kind in _OF_ALL else _whose(first)
    return device, _summary(first, device)


def _pods(event: Event) -> tuple[str, ...]:
    return tuple(it.name for it in suspects(event.named) if it.kind == "pod")[:1] if suspect_of(event) else ()


_AS_TOLD: Final = {
    Weight.WAITED: "did not come or answer",
    Weight.DIED: "was lost",
    Weight.SUMMARY: "was lost",
    Weight.STOPPED: "was stopped",
}


def suspect_of(event: Event) -> str:
    """Whom the lines around a complaint name as the other side: whoever complains is the witness. Empty: nobody."""
    own = event.writer
    is_own_end = event.weight is Weight.DIED and (own.rank, own.task, own.local_rank) != (None, None, None)
    if event.weight is Weight.FAILED or event.kind in _WATCHDOG or event.accused or is_own_end:
        return ""
    others = [it for it in suspects(event.named) if it.name not in (own.host, str(own.rank))]
    ranks = {int(it.name) for it in others if it.kind == "rank"}
    hosts = list(dict.fromkeys(it.name for it in others if it.kind in ("pod", "host")))
    if ranks:
        return ranks_text(ranks) + (f" ({hosts[0]})" if len(hosts) == len(ranks) == 1 else "")
    is_death = event.weight is Weight.DIED or event.kind == "waited"  # of a connection, either end can be at fault
    return hosts[0] if len(hosts) == 1 and is_death else ""


def _witness(event: Event) -> str:
    name = who(event.writer)
    return "" if name == _NOBODY else f", says {name}"


def advice_of(first: Event, settings: Mapping[str, str]) -> Fix:
    """What to do about a failure: what its rule says; where that is of the form of the message alone, what mends the
    kind of failure that its words tell of. With the values that the job has of the variables that are named."""
    kind = _advised(first)
    advice = ADVICE.get(kind) or ADVICE["killed"]
    if kind in BROAD:
        advice = advice_for((f"{first.line}\n{first.more}", first.summary), advice)
    named = ", ".join(
        f"{name}={value}" for name, value in settings.items() if name in advice.text and name not in first.line
    )
    return msgspec.structs.replace(advice, text=f"{advice.text} Here {named}.") if named else advice


def _advised(first: Event) -> str:
    """The kind whose advice is given. That the program raised it is said where its own line is the innermost."""
    if first.kind != "exception" or (first.where and not first.is_within):
        return first.kind
    return "exception_within" if first.where else "exception_alone"


def of_rank(found: Finding, rank: int | None) -> Finding:
    """The finding as one of this rank, which the file's name tells, where its device names none."""
    nameless = found.device == _NOBODY or found.device.startswith(f"{_SOMEBODY} ")
    if rank is None or not nameless or not found.code.startswith("JOB_"):
        return found
    device = f"rank {rank}{found.device.removeprefix(_NOBODY).removeprefix(_SOMEBODY)}"
    return msgspec.structs.replace(found, device=device)


def _whose(first: Event) -> str:
    """Who failed: of a fault of GPUs, whoever writes of it, the host."""
    of_host = first.code.startswith("GPU_") and first.writer.host and first.writer.rank is None
    return (first.writer.host or "") if of_host else who(first.writer)


_FINGERPRINT = table("job").of("fingerprint")[0].regex


def _odd_ranks(events: Sequence[Event]) -> list[int]:
    """The ranks that ran another collective than most, by what torch's detailed debug mode says of both sides; empty
    where neither side is in the majority."""
    calls = {int(rank): call for event in events for rank, call in _FINGERPRINT.findall(event.line)}
    counts = Counter(calls.values()).most_common(2)
    if len(counts) < 2 or counts[0][1] == counts[1][1]:
        return []
    return sorted(rank for rank, call in calls.items() if call != counts[0][0])


def _summary(first: Event, device: str) -> str:
    if device == first.writer.host:
        return f"fails: {printable_line(first.summary)}"
    if device == _NOBODY or first.weight is Weight.STOPPED:
        return f"failed: {printable_line(first.summary)}"
    if first.weight in (Weight.FAILED, Weight.DIED):
        return f"failed first: {printable_line(first.summary)}"
    return f"reported first: {printable_line(first.summary)}"


def who(writer: Writer) -> str:
    """`rank 3 on worker-1`, `task 3`, `local rank 2 on n1`, `a process on n1`, `the job`."""
    if writer.rank is not None:
        name = f"rank {writer.rank}"
    elif writer.task is not None:
        name = f"task {writer.task}"
    elif writer.local_rank is not None:
        name = f"local rank {writer.local_rank}"
    elif writer.host is not None:
        return f"{_SOMEBODY} on {writer.host}"
    else:
        return _NOBODY
    return f"{name} on {writer.host}" if writer.host else name


def _waiting_text(wait: Waiting, first: Event) -> tuple[str, str]:
    """The device and the sentence about a collective that did not end: who was behind, else who did not report."""
    what, where = _call_text(wait)
    if wait.behind:
        verb = "is" if len(wait.behind) == 1 else "are"
        if wait.odd_call:
            text = f"{verb} in another call than the others: {wait.odd_call}, while {_waiters(wait)} in {what}{where}"
        else:
            text = f"{verb} behind: had not started {what}{where} in which {_waiters(wait)}"
        return _ranks(wait, wait.behind), text
    if len(wait.ops) > 1:
        calls = "; ".join(f"{op} by {_ranks(wait, ranks)}" for op, ranks in wait.ops)
        text = f"ranks called different collectives at number {wait.number}{where}: {calls}"
        fewest = min((ranks for _, ranks in wait.ops), key=len)
        is_odd = len(fewest) <= MAX_ODD_SHARE * sum(len(ranks) for _, ranks in wait.ops)
        return (_ranks(wait, fewest), f"called another collective: {text}") if is_odd else ("the job", f"hung: {text}")
    if wait.missing:
        return ranks_text(wait.missing), f"did not come: {_waiters(wait)} in {what}{where}"
    apart = sum(len(ranks) for _, ranks in wait.elsewhere)
    if len(wait.elsewhere) == 1 and apart < MAX_ODD_SHARE * (apart + len(wait.waiting)):
        ((number, ranks),) = wait.elsewhere
        are = "is" if apart == 1 else "are"
        return _ranks(wait, ranks), f"{are} out of step: in number {number}, while {_waiters(wait)} in {what}{where}"
    if wait.waiting:
        others = "".join(f", {_ranks(wait, ranks)} in number {number}" for number, ranks in wait.elsewhere[:4])
        return _ranks(wait, wait.waiting), f"waited in {what}{where}{others}; nothing in the log says for whom"
    return who(first.writer), _summary(first, who(first.writer))


def _call_text(wait: Waiting) -> tuple[str, str]:
    """`ALLREDUCE, number 77` and `, of group DATA_PARALLEL_GROUP`."""
    what = f"collective {wait.number}" if wait.number is not None else "a collective"
    if len(wait.ops) == 1:
        what = f"{wait.ops[0][0]}, number {wait.number}" if wait.number is not None else wait.ops[0][0]
    where = f" of group {wait.group.name}" if wait.group.name and not wait.within else ""
    return what, f",{where}" if "," in what and where else where


def _ranks(wait: Waiting, ranks: Iterable[int]) -> str:
    """`rank 5`; where only the numbers within the group are known, `rank 13 of group PIPELINE_MODEL_PARALLEL_GROUP`."""
    text = ranks_text(ranks)
    return f"{text} of {_group_text(wait)} (numbers within it)" if wait.within else text


def _group_text(wait: Waiting) -> str:
    """`group DATA_PARALLEL_GROUP`; with its GUID, since groups share names, where the job's ranks are not known."""
    name = printable_line(wait.group.name, 80) or "not named"
    return f"group {name} {wait.group.guid}".rstrip() if wait.within else f"group {name}"


def _waiters(wait: Waiting) -> str:
    return f"{_ranks(wait, wait.waiting)} waited"


def _evidence(cause: Cause, waits: tuple[Waiting, ...]) -> dict[str, Any]:
    first = cause.first
    alike = sorted(ranks_of(cause.same) - ranks_of([first]))
    return {
        "at": _time(first),
        "where": first.where or None,
        "line": printable_line(f"{first.line} {first.more}", _MAX_LINE_CHARACTERS),
        "alike": ranks_text(alike) or None,
        "named": ", ".join(dict.fromkeys(_named(it) for it in first.named))[:200] or None,
        "afterwards": consequences(cause) or None,
        "waiting": [_wait_evidence(wait) for wait in waits[:8]] or None,
    }


def _named(it: Entity) -> str:
    side = "" if it.side is Side.UNKNOWN else f" ({it.side.value})"
    return f"{it.kind} {it.name}{side}"


def _wait_evidence(wait: Waiting) -> str:
    parts = [
        _group_text(wait),
        f"number {wait.number}",
        f"{ranks_text(wait.waiting)} waited",
        *(f"{ranks_text(ranks)} waited in number {number}" for number, ranks in wait.elsewhere[:4]),
        f"{ranks_text(wait.behind)} behind" if wait.behind else "",
        f"{ranks_text(wait.missing)} not heard of" if wait.missing else "",
    ]
    return ", ".join(filter(None, parts))


def _time(event: Event) -> str | None:
    """The time as the log has it, in the zone of whoever wrote it."""
    place = event.place
    if place.seconds is None:
        return None
    moment = datetime.fromtimestamp(place.seconds, timezone.utc)
    return moment.strftime("%Y-%m-%d %H:%M:%S" if place.dated else "%m-%d %H:%M:%S")


def _nan_finding(nan: Event, severity: Severity) -> Finding:
    advice = ADVICE["nan"]
    return finding(
        nan.code,
        who(nan.writer),
        "has a loss that is NaN",
        evidence={"at": _time(nan), "line": printable_line(nan.line, _MAX_LINE_CHARACTERS)},
        fix=advice.text,
        commands=advice.commands,
        severity=severity,
    )
