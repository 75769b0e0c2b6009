"""What several files show of a job together, as faults: a process that was stopped, a rank that is in no collective
while the others are, a host that nobody's bytes reach."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from laggard.diagnose.job.events import Writer
from laggard.diagnose.job.findings import who
from laggard.diagnose.joined.dump_lines import Frame, departing_frame, is_helper, own_frame, wait_of
from laggard.diagnose.joined.exhibit import Exhibit
from laggard.diagnose.joined.processes import Process, common_end, local_rank, ranks_by_launcher
from laggard.diagnose.joined.roster import Fault, Roster
from laggard.diagnose.joined.stacks import frame_text
from laggard.kit.words import ranks_text
from laggard.model import Fix

NETWORK: Final = "NETWORK_DROPS"
_MAX_ODD_SHARE: Final = 1 / 3
_STOPPED_FIX: Final = (
    "Find out who stopped it: a debugger, `kill -STOP`, or the terminal's Ctrl-Z. `kill -CONT PID` lets it go on, "
    "unless the others have ended meanwhile."
)
_HUNG_FIX: Final = (
    "Look at what that line waits for (a file, a lock, a server, another process), and give it a time limit; the other "
    "ranks only wait for this one."
)
_ODD_FIX: Final = (
    "Look where the program of these ranks takes another way: a condition on the rank, on its data or on an exception "
    "that leads to another collective."
)
_MIN_LOOKED_AT: Final = 3
"""The smallest number of ranks whose processes were seen, for one of them to be the odd one."""
_MIN_LOOKS: Final = 2
"""The smallest number of looks at a process: one alone may have met it between two waits."""
_MAX_IDLE_PERCENT: Final = 10.0
"""The most of a core that a process uses which waits for another: it asks now and then."""
_SPIN_FIX: Final = (
    "See which line it turns in, and what that loop waits for: a file, a flag, another process. Give the loop a time "
    "limit and a sleep; the other ranks only wait for this one."
)
_LEFT_FIX: Final = (
    "Give all ranks as many steps: a sampler that pads or drops (`DistributedSampler(drop_last=True)`), "
    "`torch.distributed.algorithms.Join`, or a count of steps that all agree on before the loop."
)
_DROPS_FIX: Final = (
    "Look at what drops packets on that host: `nft list ruleset`, `iptables -L -v -n -x`, `tc -s qdisc`, `ethtool -S "
    "DEV`, and at its port of the switch."
)


class _Seen(NamedTuple):
    rank: int
    frames: tuple[Frame, ...]
    path: str


def witness_faults(exhibits: Sequence[Exhibit], roster: Roster) -> Iterator[Fault]:
    ranks = _ranks_of_pids(exhibits, roster)
    looks = list(_looks(exhibits, ranks, roster))
    looked_at = [*_stopped(looks, roster), *_elsewhere(exhibits, ranks, roster)]
    yield from looked_at or _running(looks, roster)
    yield from _left(exhibits, roster)
    yield from _unanswered(exhibits, roster)


def _ranks_of_pids(exhibits: Iterable[Exhibit], roster: Roster) -> dict[tuple[str | None, int], int]:
    """The rank of each process, by host and number. Hosts have processes of the same numbers."""
    found = {(roster.hosts.get(rank), pid): rank for rank, pid in roster.pids.items()}
    for it in exhibits:
        host = _host(it, roster)
        for pid, rank in ranks_by_launcher(it.processes).items():
            found.setdefault((host, pid), rank)
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
                    _STOPPED_FIX if letters == "Tt" else _HUNG_FIX,
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
        fix=Fix(_SPIN_FIX, (f"py-spy dump --pid {row.pid}", f"py-spy top --pid {row.pid}")),
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
        fix=Fix(_LEFT_FIX),
        ranks=ranks,
        left=True,
    )


def _elsewhere(
    exhibits: Iterable[Exhibit], ranks: Mapping[tuple[str | None, int], int], roster: Roster
) -> Iterator[Fault]:
    """Ranks that are in no collective while others are; else those few that are in another collective than the rest."""
    seen: dict[int, _Seen] = {}
    for it in exhibits:
        for stack in it.stacks:
            alone = next(iter(it.ranks)) if len(it.ranks) == 1 else it.origin.rank
            own = stack.rank if stack.rank is not None else alone
            rank = own if own is not None else _rank_of(stack.pid, _host(it, roster), ranks)
            if rank is not None:
                seen.setdefault(rank, _Seen(rank, stack.frames, it.path))
            if own is None or own == it.origin.rank and stack.pid is None:
                for twin in (twin.rank for twin in it.twins if twin.rank is not None):
                    seen.setdefault(twin, _Seen(twin, stack.frames, it.path))
    seen = {rank: each for rank, each in seen.items() if not is_helper(each.frames)}
    calls = {rank: wait_of(each.frames) for rank, each in seen.items()}
    waiting = sorted(rank for rank, call in calls.items() if call)
    out = sorted(rank for rank, call in calls.items() if not call)
    if waiting and out and len(out) <= max(1, len(seen) // 2):
        for rank in out:
            frame = departing_frame(seen[rank].frames, [seen[it].frames for it in waiting])
            are = "is" if len(waiting) == 1 else "are"
            others = f"{ranks_text(waiting)} {are} in {calls[waiting[0]]}"
            says = f"hung in {frame_text(frame)}: it is in no collective, while {others}"
            yield _of_stack(seen[rank], frame, says, _HUNG_FIX, roster)
    elif not out and len(seen) >= 3:
        yield from _odd(seen, calls, roster)


def _odd(seen: Mapping[int, _Seen], calls: Mapping[int, str], roster: Roster) -> Iterator[Fault]:
    places = {rank: (calls[rank], own_frame(each.frames)._replace(text="", offset=0)) for rank, each in seen.items()}
    counts = Counter(places.values()).most_common()
    if len(counts) != 2 or counts[1][1] > _MAX_ODD_SHARE * len(seen):
        return
    (call, frame), (odd_call, odd_frame) = counts[0][0], counts[1][0]
    rest = [rank for rank, place in places.items() if place == counts[0][0]]
    for rank in sorted(rank for rank, place in places.items() if place == counts[1][0]):
        says = (
            f"is in another call than the others: {odd_call} at {frame_text(odd_frame)}, while {ranks_text(rest)} "
            f"are in {call} at {frame_text(frame)}"
        )
        yield _of_stack(seen[rank], own_frame(seen[rank].frames), says, _ODD_FIX, roster)


def _of_stack(seen: _Seen, frame: Frame, says: str, fix: str, roster: Roster) -> Fault:
    host = roster.hosts.get(seen.rank)
    return Fault(
        "JOB_COLLECTIVE_TIMEOUT",
        who(Writer(seen.rank, host=host)),
        says,
        True,
        seen.path,
        host,
        frame.text,
        fix=Fix(fix, ("laggard run --record DIR ...",)),
        ranks=(seen.rank,),
        direct=True,
        offset=frame.offset,
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
        fix=Fix(_DROPS_FIX, ("nft list ruleset", "tc -s qdisc", "ss -tni")),
    )


def address_hosts(exhibits: Iterable[Exhibit], roster: Roster) -> dict[str, str]:
    """The host of each address, by what was copied from it and by lists of hosts."""
    found: dict[str, str] = {}
    for it in exhibits:
        for address, name in it.named_addresses:
            if name in roster.all_hosts:
                found.setdefault(address, name)
        host = _host(it, roster)
        if host and len(it.addresses) <= 64:
            found |= {address: host for address in it.addresses}
    return found
