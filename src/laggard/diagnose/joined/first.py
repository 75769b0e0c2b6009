"""Who was first: a fault of a host before what its ranks say, a failure before what follows from it, a rank that says
nothing before those that waited for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from laggard.diagnose.job.cause import Cause, find_cause, find_waiting, ranks_of
from laggard.diagnose.job.events import Event, Weight, Writer
from laggard.diagnose.job.findings import MAX_ODD_SHARE, advice_of, said_of, who
from laggard.diagnose.job.rules import ADVICE
from laggard.diagnose.joined.clock import is_near
from laggard.diagnose.joined.explains import (
    HARDWARE,
    MAX_SHOWN,
    MEMORY,
    PORTS,
    WAITING,
    faults_before,
    of_silent,
    on_host,
    shown,
    silent_clues,
    victims_of,
)
from laggard.diagnose.joined.roster import OF_A_LAUNCHER, Clue, Fault, First, Role, Roster, reporters
from laggard.diagnose.rules import table
from laggard.kit.words import joined as listed
from laggard.kit.words import ranks_text

_LIMIT: Final = "was killed for its memory limit"
"""How the readers of Kubernetes' descriptions begin to say it."""


def find_first(roster: Roster, faults: Sequence[Fault]) -> First | None:
    """Returns the first cause; None where nothing failed."""
    roster = _with_deaths(roster)
    cause = find_cause(roster.evidence)
    direct = _direct(faults, cause, roster)
    if cause is None:
        return _of_looked_at(direct, None, roster) if direct else _accused_alone(roster, faults)
    if direct and _ends_a_hang(cause.first):
        return _of_looked_at(direct, cause, roster)
    faults = [it for it in faults if not it.direct]
    cause = _of_silent_rank(cause, roster)
    fault = _fault_before(cause.first, roster, faults)
    if cause.first.weight in WAITING:
        return _of_waiting(cause, fault, roster, faults)
    if fault is not None:
        return _of_fault(fault, cause, roster)
    return _of_event(cause, roster)


def _with_deaths(roster: Roster) -> Roster:
    """The end by SIGABRT of a rank that says nothing itself is a death, and no consequence: torch's own aborts say why.
    Of many, none is."""
    events = roster.evidence.events
    said = {it.writer.rank for it in events if it.kind not in OF_A_LAUNCHER}
    quiet = {it.writer.rank for it in events if it.kind == "aborted" and it.weight is Weight.SUMMARY} - said - {None}
    if not quiet or len(quiet) > max(1, len(roster.ranks) // 3):
        return roster
    raised = tuple(
        it._replace(weight=Weight.DIED) if it.kind == "aborted" and it.writer.rank in quiet else it for it in events
    )
    return roster._replace(evidence=roster.evidence._replace(events=raised))


def _of_silent_rank(cause: Cause, roster: Roster) -> Cause:
    """A death that a shell reports without a rank is that of the only rank that says nothing."""
    first, silent = cause.first, _silent(roster)
    if first.weight is not Weight.DIED or first.writer.rank is not None or len(silent) != 1:
        return cause
    rank = next(iter(silent))
    writer = first.writer._replace(rank=rank, host=roster.hosts.get(rank, first.writer.host))
    return cause._replace(first=first._replace(writer=writer))


def _killed_rank(fault: Fault, roster: Roster) -> int | None:
    """The rank that the kernel killed, where one alone says nothing and is not known to be on another host."""
    silent = [
        rank for rank in _silent(roster) if fault.host is None or roster.hosts.get(rank, fault.host) == fault.host
    ]
    return silent[0] if fault.code in MEMORY and len(silent) == 1 else None


def _direct(faults: Sequence[Fault], cause: Cause | None, roster: Roster) -> list[Fault]:
    """What was seen at a process while it hung; of processes that did not themselves time out waiting."""
    waited = {it.writer.rank for it in roster.evidence.events if it.weight is Weight.WAITED} if cause else set()
    return [it for it in faults if it.direct and not waited.intersection(it.ranks)]


def _ends_a_hang(event: Event) -> bool:
    """Whether an event is how a job ends that hangs: its ranks time out, or somebody stops or kills it."""
    return event.weight in (*WAITING, Weight.STOPPED) or (event.code == "JOB_KILLED" and event.weight is Weight.DIED)


def _of_looked_at(direct: Sequence[Fault], cause: Cause | None, roster: Roster) -> First:
    """The ranks that were seen to hang, with those that waited for them."""
    first = direct[0]
    same = [it for it in direct if it.path != first.path or it.ranks != first.ranks]
    ranks = tuple(sorted({rank for it in direct for rank in it.ranks}))
    victims = victims_of(cause, ranks).events if cause else ()
    hosts = sorted({it.host for it in direct if it.host})
    waited = ranks_text(it.writer.rank for it in victims if it.writer.rank is not None)
    subject = first.device if len(ranks) == 1 else ranks_text(ranks) + (f" on {listed(hosts)}" if hosts else "")
    return First(
        first.code,
        subject,
        first.summary + (f"; {waited} waited for it" if waited else ""),
        first.fix,
        (
            Clue.of_fault(Role.FIRST, first),
            *(Clue.of_fault(Role.SHOWS, it) for it in same[:MAX_SHOWN]),
            *silent_clues(ranks, roster, Role.SHOWS),
            *shown(Role.THEN, victims, roster),
        ),
        hosts[0] if len(hosts) == 1 else None,
        ranks,
    )


def _fault_before(event: Event, roster: Roster, faults: Sequence[Fault]) -> Fault | None:
    """The fault of the event's host that can be its cause. Where the host of either is not told: of the only host that
    has one."""
    codes = faults_before(event)
    waits = event.weight in WAITING
    own = () if event.writer.rank is None else (event.writer.rank,)
    suspects = _suspects(roster) if waits else frozenset(own)
    files = {path for rank in suspects for path in roster.files.get(rank, ())}
    able = [it for it in faults if it.code in codes and (it.critical or waits or it.path in files) and not it.ranks]
    able = [it for it in able if is_near(it.seconds, event.place.seconds if event.place.dated else None)]
    hosts = {roster.hosts[rank] for rank in suspects if rank in roster.hosts}
    if not waits and event.writer.host:
        hosts.add(event.writer.host)
    there = [it for it in able if it.host in hosts or it.path in files]
    known = [it for it in able if it.host in roster.all_hosts]
    if not there and waits and len({it.host for it in known}) == 1:
        there = known
    if not there and len({it.host for it in able}) == 1 and (waits or not hosts or able[0].host is None):
        there = able
    grave = [it for it in able if it.critical]
    if not there and waits and len({it.host for it in grave} - {None}) <= 1:
        there = grave
    if not there and waits and all(it.seconds is not None for it in able):
        there = able
    return min(
        there,
        key=lambda it: (it.seconds is None, it.seconds or 0.0, it.code not in HARDWARE, not it.critical),
        default=None,
    )


def _suspects(roster: Roster) -> frozenset[int]:
    """The ranks that others waited for, as far as the job's own output tells."""
    behind = {rank for wait in find_waiting(roster.evidence) if not wait.within for rank in wait.behind}
    return frozenset(behind or roster.stuck or _silent(roster))


def _silent(roster: Roster) -> frozenset[int]:
    told = reporters(roster)
    silent = roster.ranks - told if told and len(told) < len(roster.ranks) else frozenset()
    return frozenset(rank for rank in silent if rank in roster.files) or silent


def _of_event(cause: Cause, roster: Roster) -> First:
    first = cause.first
    subject, says = said_of(cause, ())
    rank = first.writer.rank
    victims = victims_of(cause, () if rank is None else (rank,)).events
    return First(
        first.code,
        subject,
        says + (f" ({first.where})" if first.where else ""),
        advice_of(first, roster.evidence.settings),
        (
            Clue.of_event(Role.FIRST, first, roster),
            *shown(Role.THEN, (event for event in victims if event is not first), roster),
        ),
        first.writer.host,
        () if rank is None else (rank,),
        first.place.seconds is None and bool(victims),
    )


def _of_fault(fault: Fault, cause: Cause, roster: Roster) -> First:
    event = cause.first
    rank = event.writer.rank if event.weight not in WAITING else _killed_rank(fault, roster)
    on = f" on {fault.host}" if fault.host and fault.host not in fault.device else ""
    ranks: tuple[int, ...] = () if rank is None else (rank,)
    if fault.code in MEMORY and rank is not None:
        subject = who(Writer(rank, host=fault.host or event.writer.host))
        if event.code == "JOB_DATALOADER_DIED":
            subject = f"a DataLoader worker of {subject}"
        says = f"was killed by the kernel: its host was out of memory ({fault.device})"
        if fault.summary.startswith(_LIMIT):
            says = f"{fault.summary} ({fault.device})"
    else:
        subject, says = f"{fault.device}{on}", f"{fault.summary}{_consequence(event, rank, roster, fault)}"
    if rank is None and len(there := on_host(fault.host, roster)) == 1 and len(roster.ranks) > 2:
        ranks = there
    victims = [it for it in victims_of(cause).events if it is not event]
    clock = event.place.seconds if event.place.dated else None
    by_cause = fault.seconds is None or clock is None or fault.seconds > clock
    return First(
        fault.code if fault.code not in MEMORY else "JOB_HOST_OUT_OF_MEMORY",
        subject,
        says,
        fault.fix,
        (
            Clue.of_fault(Role.FIRST, fault),
            *silent_clues(ranks, roster, Role.SHOWS),
            *shown(Role.THEN, (event, *victims), roster),
        ),
        fault.host or event.writer.host,
        ranks,
        by_cause,
    )


def _consequence(event: Event, rank: int | None, roster: Roster, fault: Fault) -> str:
    if rank is not None:
        return f"; then {who(event.writer)} failed"
    waited = sorted(reporters(roster))
    there = on_host(fault.host, roster)
    waited = [rank for rank in waited if rank not in there] or waited
    named = f" for {ranks_text(there)} on it" if there and len(there) < len(roster.ranks) else ""
    return f"; {ranks_text(waited)} waited{named}" if waited else ""


def _of_waiting(cause: Cause, fault: Fault | None, roster: Roster, faults: Sequence[Fault]) -> First:
    """Nobody says that he failed: all that is told are waits, and connections that closed."""
    accusing = next((it for it in faults if it.ranks and not it.left), None)
    if fault is not None:
        return _of_fault(fault, cause, roster)
    waits = [wait for wait in find_waiting(roster.evidence) if not wait.within]
    behind = next((wait.behind for wait in waits if wait.behind), ())
    if behind:
        return of_silent(behind, "had not started the collective in which", cause, roster)
    if roster.stuck:
        return of_silent(sorted(roster.stuck), "", cause, roster)
    silent = sorted(_silent(roster))
    left = next((it for it in faults if it.left and set(it.ranks) <= set(silent)), None)
    if left is not None:
        return _of_accused(left, cause, roster)
    if accusing is not None and not silent:
        return _of_accused(accusing, cause, roster)
    if silent:
        agreed = sorted(set(silent) & set(accusing.ranks)) if accusing is not None else []
        return of_silent(agreed or silent, "", cause, roster)
    return _quiet_end(cause, roster) or _elsewhere(cause, roster) or _of_network(cause, roster)


def _of_accused(fault: Fault, cause: Cause | None, roster: Roster) -> First:
    victims = victims_of(cause, fault.ranks).events if cause else ()
    logs = silent_clues(fault.ranks, roster, Role.SHOWS)
    clues = (Clue.of_fault(Role.FIRST, fault), *logs, *shown(Role.THEN, victims, roster))
    host = fault.host or next((roster.hosts[rank] for rank in fault.ranks if rank in roster.hosts), None)
    return First(fault.code, fault.device, fault.summary, fault.fix, clues, host, fault.ranks)


def _accused_alone(roster: Roster, faults: Sequence[Fault]) -> First | None:
    """No log says that anything failed, and a recording or a report accuses ranks."""
    accusing = next((it for it in faults if it.ranks and it.critical and not it.left), None)
    if accusing is None:
        return None
    network = [it for it in faults if it.code in PORTS and it.critical and it.host and not it.ranks]
    if accusing.code == "JOB_KILLED" and len({it.host for it in network}) == 1:
        return _of_port(network[0], accusing, roster)  # those that died may have timed out: a recording does not say
    return _of_accused(accusing, None, roster)


def _of_port(fault: Fault, died: Fault, roster: Roster) -> First:
    ranks = there if len(there := on_host(fault.host, roster)) == 1 and len(roster.ranks) > 2 else ()
    subject, says = f"{fault.device} on {fault.host}", f"{fault.summary}; then {died.device} failed"
    clues = (Clue.of_fault(Role.FIRST, fault), Clue.of_fault(Role.THEN, died))
    return First(fault.code, subject, says, fault.fix, clues, fault.host, ranks)


def _quiet_end(cause: Cause, roster: Roster) -> First | None:
    """A rank that ended with a status and says nothing, while the others complain of it."""
    complained = set(victims_of(cause).ranks)
    ended = [
        it for it in (cause.first, *cause.same, *cause.later) if it.kind == "status" and it.writer.rank is not None
    ]
    quiet = [it for it in ended if it.writer.rank not in complained]
    ranks = sorted({it.writer.rank for it in quiet if it.writer.rank is not None})
    if len(ranks) != 1 or len(complained) < len(ranks):
        return None
    own = Clue.of_event(Role.FIRST, quiet[-1], roster)
    return First(
        quiet[0].code,
        who(quiet[0].writer._replace(host=roster.hosts.get(ranks[0], quiet[0].writer.host))),
        f"ended first: {quiet[0].summary}, and its log has no error; {ranks_text(complained)} complained afterwards",
        ADVICE["status"],
        (own, *silent_clues(ranks, roster), *shown(Role.THEN, victims_of(cause, ranks).events, roster)),
        roster.hosts.get(ranks[0]),
        tuple(ranks),
    )


def _elsewhere(cause: Cause, roster: Roster) -> First | None:
    """Ranks that waited at another line of the program than most: they did not call the same collective."""
    waited = [event for event in victims_of(cause).events if event.weight is Weight.WAITED and event.where]
    places = Counter(event.where for event in waited)
    if len(places) != 2 or len(waited) < 3:
        return None
    (usual, _), (odd, few) = places.most_common()
    if few > MAX_ODD_SHARE * len(waited):
        return None
    apart = [event for event in waited if event.where == odd]
    rest = [event for event in waited if event.where == usual]
    ranks = tuple(sorted(ranks_of(apart)))
    if not ranks:
        return None
    return First(
        "JOB_COLLECTIVE_TIMEOUT",
        roster.named(ranks),
        f"waited at another line than the others: {odd}, while {ranks_text(ranks_of(rest))} waited at {usual}",
        ADVICE["mismatch"],
        (*(Clue.of_event(Role.FIRST, event, roster) for event in apart), *shown(Role.THEN, rest, roster)),
        roster.one_host(ranks),
        ranks,
    )


def _of_network(cause: Cause, roster: Roster) -> First:
    victims = victims_of(cause)
    hosts = roster.hosts_of(victims.ranks)
    first = cause.first
    every = len(victims.ranks) > 1 and set(victims.ranks) >= roster.ranks
    if every and len(hosts) > 1:
        subject = f"the network between {listed(hosts)}"
        says = f"carried nothing any more: {ranks_text(victims.ranks)} all waited for one another, and none is silent"
        fix = table("hangs").advice["network"]
    else:
        subject, says = said_of(cause, find_waiting(roster.evidence))
        fix = advice_of(first, roster.evidence.settings)
    return First(first.code, subject, says, fix, shown(Role.SHOWS, victims.events or (first,), roster))
