"""What a file says about processes, hosts and times, whatever its format, and what its name and folders say of its
rank and host. Logs of another job, or of an earlier run, are told.

What stands in a file counts more than its name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from laggard.diagnose.joined.clock import time_text, wall_time
from laggard.diagnose.joined.processes import (
    UNANSWERED_HEAD,
    Connection,
    Identity,
    Process,
    connections,
    identities,
    of_container,
    own_addresses,
    processes,
    ranks_that_write,
    served,
)
from laggard.diagnose.joined.stacks import KIND, Stack, stacks
from laggard.diagnose.rules import patterns

_P: Final = patterns("exhibits")

_MIN_COUNTED: Final = 2


class Origin(NamedTuple):
    """None: not told."""

    rank: int | None = None
    local_rank: int | None = None
    host: str | None = None
    attempt: int | None = None
    """The number of torchrun's attempt that wrote it."""


def origins(files: Sequence[Sequence[str]]) -> list[Origin]:
    """Returns the origin of each file. `files`: the words of their paths below the folder that was given."""
    counted = _counted_names(files)
    hosts = _host_folders(files)
    return [_origin(words, tuple(words) in counted, hosts) for words in files]


def _origin(words: Sequence[str], is_counted: bool, hosts: frozenset[str]) -> Origin:
    path = "/".join(words)
    host = _named_host(words) or next((word for word in words[:-1] if word in hosts), None)
    if found := _P["torchrun"].search(path):
        return Origin(None, int(found[2]), host, int(found[1]))
    if found := _P["local"].search(path):
        return Origin(None, int(found[1]), host)
    if found := _last(_P["exhibit_rank"], path):
        return Origin(int(found[1]), None, host)
    if is_counted and (found := _P["counted"].match(words[-1])):
        return Origin(int(found[2]), None, host)
    return Origin(host=host)


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return next(iter(reversed(list(pattern.finditer(text)))), None)


def _named_host(words: Sequence[str]) -> str | None:
    """A host that a folder or the file is named after: `host-a/dmesg.txt`, `dmesg-n2.log`."""
    for word in (*words[:-1], words[-1].partition(".")[0], words[-1]):
        if found := _P["host"].search(word):
            return found[1]
    return None


def _counted_names(files: Iterable[Sequence[str]]) -> frozenset[tuple[str, ...]]:
    """The files whose names count from 0 without a gap, beside one another: `out.0`, `out.1`, ...: a file a rank."""
    groups: dict[tuple[tuple[str, ...], str, str], dict[int, tuple[str, ...]]] = {}
    for words in files:
        if (found := _P["counted"].match(words[-1])) and not _P["host"].search(words[-1]):
            groups.setdefault((tuple(words[:-1]), found[1], found[3]), {})[int(found[2])] = tuple(words)
    whole = (group for group in groups.values() if len(group) >= _MIN_COUNTED and set(group) == set(range(len(group))))
    return frozenset(words for group in whole for words in group.values())


def _host_folders(files: Iterable[Sequence[str]]) -> frozenset[str]:
    """Folders beside one another that hold files of the same names, as somebody made who copied them from each host.
    Folders of attempts, ranks and numbers are none."""
    inside: dict[tuple[tuple[str, ...], str], set[str]] = {}
    for words in files:
        if len(words) > 1:
            for depth in range(min(3, len(words) - 1)):
                if depth + 2 == len(words):
                    inside.setdefault((tuple(words[:depth]), words[-1]), set()).add(words[depth])
    alike = (names for names in inside.values() if len(names) >= _MIN_COUNTED)
    return frozenset(name for names in alike for name in names if not _P["generic"].fullmatch(name))


_SAMPLED_LINES: Final = 200
_LAST_LINES: Final = 5
_CALL_FIRST: Final = "(most recent call first)"


class Exhibit(NamedTuple):
    path: str
    origin: Origin = Origin()
    twins: tuple[Origin, ...] = ()
    """The origins of files with the same content."""
    is_job: bool = False
    """True: of what a job prints."""
    identities: tuple[Identity, ...] = ()
    writers: frozenset[int] = frozenset()
    """The ranks in front of its lines."""
    processes: tuple[Process, ...] = ()
    stacks: tuple[Stack, ...] = ()
    connections: tuple[Connection, ...] = ()
    addresses: frozenset[str] = frozenset()
    finished: str = ""
    """The last line of the job's output that is in it, where that says that the program had come to its end."""
    last: float | None = None
    """The wall clock of its last line that has one, in whatever zone."""

    note: str = ""
    """The text of a note that somebody wrote; empty: it is none."""

    @property
    def ranks(self) -> frozenset[int]:
        return self.writers | {it.rank for it in self.identities}

    @property
    def host(self) -> str | None:
        """The host that it is of: by its name, by its prompts, by what it says of its processes."""
        said = {it.host for it in self.identities if it.host}
        return self.origin.host or (said.pop() if len(said) == 1 else None)


def read_exhibit(path: str, origin: Origin, text: str, kind: str, is_job: bool, year: int | None) -> Exhibit:
    """`kind`: the name of its format; empty where it is of none. `year`: of the lines that tell none."""
    prompts = set(_P["prompt"].findall(text[: 1 << 18]))
    if len(prompts) == 1:
        origin = origin._replace(host=prompts.pop())
    if is_job:
        said, writers = (*of_container(text), *identities(text)), ranks_that_write(text)
        dumped, finished = _dumped(text), _finished(text)
        return Exhibit(
            path, origin, (), True, said, writers, stacks=dumped, finished=finished, last=_last_time(text, year)
        )
    rows = connections(text)
    return Exhibit(
        path,
        origin,
        (),
        False,
        (*served(text), *of_container(text), *_of_unclear(text, kind)),
        frozenset(),
        processes(text),
        stacks(text),
        rows,
        own_addresses(text, rows),
        _finished(text) if not kind else "",
        _last_time(text, year) if kind else None,
        text[:8192] if not kind and not rows else "",
    )


def _of_unclear(text: str, kind: str) -> tuple[Identity, ...]:
    return _of_unknown(text) if kind in ("", KIND) or UNANSWERED_HEAD.match(text) else ()


def _of_unknown(text: str) -> tuple[Identity, ...]:
    """What a text of no known format says of processes: of stacks, and of a log in which nothing failed, where it tells
    the number of a rank's process, and its host or the number of ranks."""
    said = identities(text)
    whole = any(it.pid is not None and (it.host or it.world) for it in said)
    return said if _CALL_FIRST in text or whole else ()


def _dumped(text: str) -> tuple[Stack, ...]:
    """The stacks that faulthandler wrote into a log, up to the next traceback of an exception."""
    at = text.find(_CALL_FIRST)
    if at < 0:
        return ()
    return stacks(text[text.rfind("\n", 0, at) + 1 :].partition("Traceback (most recent call last)")[0])


def _finished(text: str) -> str:
    """The line near the end that says that the whole program is done; an epoch, a step or a checkpoint that is says
    nothing. What libraries warn of while a process ends may follow it."""
    lines = [line.strip()[:400] for line in text.splitlines()[-_SAMPLED_LINES:] if any(map(str.isalnum, line))]
    for line in reversed(lines[-_LAST_LINES:]):
        if _P["failed"].search(line):
            return ""
        if _P["done"].search(line) and not _P["not_done"].search(line):
            return line
    return ""


def _last_time(text: str, year: int | None) -> float | None:
    lines = text.splitlines()[-_SAMPLED_LINES:]
    return next(filter(None, (wall_time(line, year) for line in reversed(lines))), None)


MAX_ZONE_SECONDS: Final = 14.5 * 3600
"""The time that the logs of one incident lie apart at most: clocks of hosts may stand in different time zones."""


def other_jobs(exhibits: Sequence[Exhibit]) -> dict[str, str]:
    """Returns the paths of the logs that are of another job, each with how that is known. Where neither a note nor a
    host says so, some log is always left."""
    logs = [it for it in exhibits if it.is_job]
    found = _by_note(logs, exhibits) | _by_name(logs, exhibits)
    for told in (_by_time(exhibits), _by_name(logs)):
        more = {path: why for path, why in told.items() if path not in found}
        if len(found) + len(more) < len(logs):
            found |= more
    return found


def _by_time(exhibits: Sequence[Exhibit]) -> dict[str, str]:
    """Those far from the time in which most files were written; of two as large, from the later."""
    timed = sorted((it.last, place) for place, it in enumerate(exhibits) if it.last is not None)
    if not timed:
        return {}
    clusters: list[list[tuple[float, int]]] = [[timed[0]]]
    for before, each in zip(timed, timed[1:], strict=False):
        if each[0] - before[0] > MAX_ZONE_SECONDS:
            clusters.append([])
        clusters[-1].append(each)
    with_logs = [it for it in clusters if any(exhibits[place].is_job for _, place in it)]
    if len(with_logs) < 2:
        return {}
    main = max(with_logs, key=lambda cluster: (len(cluster), cluster[-1][0]))
    return {
        exhibits[place].path: f"its last line is of {time_text(last)}"
        for cluster in with_logs
        if cluster is not main
        for last, place in cluster
        if exhibits[place].is_job
    }


def _by_note(logs: Sequence[Exhibit], exhibits: Iterable[Exhibit]) -> dict[str, str]:
    """Those that a note names in a sentence with `another job`, `yesterday` and the like."""
    names = {os.path.basename(it.path).removesuffix(".gz"): it.path for it in logs}
    told: dict[str, str] = {}
    for note in (it for it in exhibits if it.note):
        for name, path in names.items():
            if (at := note.note.find(name)) >= 0:
                sentence = re.split(r"\n|[.!?](?:\s|$)|;", note.note[at + len(name) : at + len(name) + 200])[0]
                if _P["other"].search(sentence):
                    told[path] = f"{os.path.basename(note.path)} says so"
    return told


def _by_name(logs: Sequence[Exhibit], exhibits: Sequence[Exhibit] = ()) -> dict[str, str]:
    """Those whose names say so; with `exhibits`: and that are of another host than all other files."""
    named = [it for it in logs if _P["other_name"].search(os.path.basename(it.path))]
    if exhibits:
        rest = {it.host for it in exhibits if it not in named and it.host}
        named = [it for it in named if it.host and rest and it.host not in rest]
    return {it.path: "its name says so" for it in named}
