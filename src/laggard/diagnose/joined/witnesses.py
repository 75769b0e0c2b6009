"""What several files show of a job together, as faults: a process that was stopped, a rank that is in no collective
while the others are, a host that nobody's bytes reach."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from laggard.diagnose.job.events import Writer
from laggard.diagnose.job.findings import who
from laggard.diagnose.joined.exhibit import Exhibit
from laggard.diagnose.joined.processes import Process, common_end, local_rank
from laggard.diagnose.joined.roster import Fault, Roster
from laggard.diagnose.joined.standing import Seen, standings
from laggard.diagnose.rules import table
from laggard.kit.words import ranks_text
from laggard.model import Fix

NETWORK: Final = "NETWORK_DROPS"
_MIN_LOOKED_AT: Final = 3
"""The smallest number of ranks whose processes were seen, for one of them to be the odd one."""
_MIN_LOOKS: Final = 2
"""The smallest number of looks at a process: one alone may have met it between two waits."""
_ADVICE: Final = table("hangs").advice
_MAX_IDLE_PERCENT: Final = 10.0
"""The most of a core that a process uses which waits for another: it asks now and then."""


def witness_faults(exhibits: Sequence[Exhibit], roster: Roster) -> Iterator[Fault]:
    ranks = _ranks_of_pids(exhibits, roster)
    looks = list(_looks(exhibits, ranks, roster))
    looked_at = [*_stopped(looks, roster), *_standing(exhibits, ranks, roster)]
    yield from looked_at or _running(looks, roster)
    yield from _left(exhibits, roster)
    yield from _unanswered(exhibits, roster)


def _ranks_of_pids(exhibits: Iterable[Exhibit], roster: Roster) -> dict[tuple[str | None, int], int]:
    """The rank of each process, by host and number. Hosts have processes of the same numbers."""
    found = {(roster.hosts.get(rank), pid): rank for rank, pid in roster.pids.items()}
    for it in exhibits:
        host = _host(it, roster)
        alone = [rank for rank, its in roster.hosts.items() if its == host]
        workers = [row for row in it.processes if local_rank(row) is not None]
        for row in workers:
            base = min(alone, default=None)
            local = local_rank(row)
            if base is not None and local is not None and len(workers) == len(alone):
                found.setdefault((host, row.pid), base + local)
    return found


def _host(exhibit: Exhibit, roster: Roster) -> str | None:
    return roster.names.get(exhibit.host, exhibit.host) if exhibit.host else None


def _rank_of(pid: int | None, host: str | None, ranks: Mapping[tuple[str | None, int], int]) -> int | None:
    """The rank of a process; of a file that names no host, where the number is that of one rank alone."""
    if pid is None:
        return None
    if (host, pid) in ranks:
        return ranks[host, pid]
    alike = {rank for (its, number), rank in ranks.items() if number == pid and (None in (host, its))}
    return alike.pop() if len(alike) == 1 else None


def _looks(
    exhibits: Iterable[Exhibit], ranks: Mapping[tuple[str | None, int], int], roster: Roster
) -> Iterator[tuple[int, Process, Exhibit]]:
    """The looks at processes of ranks."""
    for it in exhibits:
        for row in it.processes:
            rank = _rank_of(row.pid, _host(it, roster), ranks)
            if rank is not None:
                yield rank, row, it


def _stopped(looks: Iterable[tuple[int, Process, Exhibit]], roster: Roster) -> Iterator[Fault]:
    """Ranks whose process is stopped; or waits in the kernel, where one alone does."""
    for letters, says in (("Tt", "was stopped"), ("D", "hangs in the kernel"), ("Z", "had ended")):
        of_kind = {rank: (row, it) for rank, row, it in looks if row.state[0] in letters}
        if not of_kind or len(of_kind) > max(1, len(roster.ranks) // 3):
            continue
        for rank, (row, it) in sorted(of_kind.items()):
            waits = f" in {row.waits}" if row.waits.strip("-0") else ""
            host = roster.hosts.get(rank) or _host(it, roster)
            yield Fault(
                "JOB_COLLECTIVE_TIMEOUT",
                who(Writer(rank, host=host)),
                f"{says}: its process {row.pid} is in state {row.state[0]}{waits}",
                True,
                it.path,
                host,
                row.line,
                fix=Fix(
                    _ADVICE["stopped" if letters == "Tt" else "hung"].text,
                    (f"cat /proc/{row.pid}/status /proc/{row.pid}/wchan", f"py-spy dump --pid {row.pid}"),
                ),
                ranks=(rank,),
                direct=True,
            )
        return


def _running(seen: Iterable[tuple[int, Process, Exhibit]], roster: Roster) -> Iterator[Fault]:
    """The one rank whose process runs, in each of several looks at it, while those of all others sleep: it turns in a
    loop that it does not leave. Ranks of a training that goes on sleep now and then, too."""
    looks: dict[int, list[tuple[Process, Exhibit]]] = {}
    for rank, row, it in seen:
        looks.setdefault(rank, []).append((row, it))
    busy = [rank for rank, found in looks.items() if all(row.state.startswith("R") for row, _ in found)]
    asleep = [rank for rank, found in looks.items() if all(row.state[:1] in ("S", "I") for row, _ in found)]
    if len(busy) != 1 or len(looks) < _MIN_LOOKED_AT or len(asleep) != len(looks) - 1:
        return
    row, it = next(((row, it) for row, it in looks[busy[0]] if row.cpu is not None), looks[busy[0]][-1])
    idle = all((other.cpu or 0.0) <= _MAX_IDLE_PERCENT for rank in asleep for other, _ in looks[rank])
    if len(looks[busy[0]]) < _MIN_LOOKS or not idle:
        return
    much = f", {row.cpu:.0f} % of a core" if row.cpu is not None else ""
    host = roster.hosts.get(busy[0]) or _host(it, roster)
    yield Fault(
        "JOB_COLLECTIVE_TIMEOUT",
        who(Writer(busy[0], host=host)),
        f"hung: its process {row.pid} runs without end (state {row.state[0]}{much}), while {ranks_text(asleep)} sleep",
        True,
        it.path,
        host,
        row.line,
        fix=Fix(_ADVICE["spins"].text, (f"py-spy dump --pid {row.pid}", f"py-spy top --pid {row.pid}")),
        ranks=(busy[0],),
        direct=True,
    )


def _left(exhibits: Iterable[Exhibit], roster: Roster) -> Iterator[Fault]:
    """Ranks whose own log ends with the word that they are done. Where all do, nobody left before the others."""
    last: dict[int, list[Exhibit]] = {}
    for it in exhibits:
        own = next(iter(it.ranks)) if len(it.ranks) == 1 else it.origin.rank
        if own is not None and (it.is_job or it.identities):
            last.setdefault(own, []).append(it)
    done = {rank: next(it for it in its if it.finished) for rank, its in last.items() if any(it.finished for it in its)}
    if not done or len(done) > len(roster.ranks) // 2:
        return
    ranks = tuple(sorted(done))
    hosts = roster.hosts_of(ranks)
    first = done[ranks[0]]
    yield Fault(
        "JOB_COLLECTIVE_TIMEOUT",
        ranks_text(ranks) + (f" on {', '.join(hosts)}" if hosts else ""),
        f"left before the others, without an error: {'its log says' if len(ranks) == 1 else 'their logs say'} that the "
        "program had come to its end",
        True,
        first.path,
        roster.one_host(ranks),
        first.finished,
        fix=_ADVICE["left"],
        ranks=ranks,
        left=True,
    )


def _standing(
    exhibits: Iterable[Exhibit], ranks: Mapping[tuple[str | None, int], int], roster: Roster
) -> Iterator[Fault]:
    """What the stacks show beside one another, each process once."""
    seen: dict[int, Seen] = {}
    for it in exhibits:
        for stack in it.stacks:
            alone = next(iter(it.ranks)) if len(it.ranks) == 1 else it.origin.rank
            own = stack.rank if stack.rank is not None else alone
            rank = own if own is not None else _rank_of(stack.pid, _host(it, roster), ranks)
            twins = [twin.rank for twin in it.twins if own is None or (own == it.origin.rank and stack.pid is None)]
            for each in (rank, *twins):
                if each is not None:
                    seen.setdefault(each, Seen(stack, it.path, each, roster.hosts.get(each)))
    for stands in standings(list(seen.values())):
        told = [it.rank for it in stands.who if it.rank is not None]
        first = stands.who[0]
        yield Fault(
            "JOB_COLLECTIVE_TIMEOUT",
            roster.named(told),
            stands.says,
            True,
            first.path,
            roster.one_host(told),
            stands.frame.text,
            fix=stands.fix,
            ranks=tuple(told),
            direct=True,
            offset=stands.frame.offset,
        )


def _unanswered(exhibits: Sequence[Exhibit], roster: Roster) -> Iterator[Fault]:
    """A host that is an end of each connection whose bytes get no answer."""
    rows = [(row, it) for it in exhibits for row in it.connections]
    address = common_end(row for row, _ in rows)
    host = address_hosts(exhibits, roster).get(address) if address else None
    if host is None:
        return
    row, it = next((row, it) for row, it in rows if row.is_stuck and address in (row.local, row.peer))
    peers = {row.local if row.peer == address else row.peer for row, _ in rows if row.is_stuck}
    yield Fault(
        NETWORK,
        "the network",
        f"carries nothing to it or from it: connections of {len(peers)} hosts with {address} send the same bytes again "
        "and get no answer",
        False,
        it.path,
        host,
        row.line,
        fix=_ADVICE["drops"],
    )


def address_hosts(exhibits: Iterable[Exhibit], roster: Roster) -> dict[str, str]:
    """The host of each address, by what was copied from it."""
    found: dict[str, str] = {}
    for it in exhibits:
        host = _host(it, roster)
        if host and len(it.addresses) <= 64:
            found |= {address: host for address in it.addresses}
    return found
