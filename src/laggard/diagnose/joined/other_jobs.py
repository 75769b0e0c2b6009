"""Which logs of a folder are of another job, or of an earlier run: by their times, by the number of their ranks, by
what a note says of them. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import Final

from laggard.diagnose.joined.clock import time_text
from laggard.diagnose.joined.exhibit import Exhibit

MAX_ZONE_SECONDS: Final = 14.5 * 3600
"""The time that the logs of one incident lie apart at most: clocks of hosts may stand in different time zones."""
_OTHER = re.compile(
    r"\b(?:(?:an)?other|old(?:er)?|previous|earlier|yesterday|unrelated|different|last (?:week|month|night)"
    r"|not this|(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day)\b",
    re.IGNORECASE,
)
_OTHER_NAME = re.compile(
    r"(?<![a-z])(?:other[-_.]?(?:job|run)|old|yesterday|last[-_.]?run|unrelated)(?![a-z])", re.IGNORECASE
)


def other_jobs(exhibits: Sequence[Exhibit]) -> dict[str, str]:
    """Returns the paths of the logs that are of another job, each with how that is known. Where neither a note nor a
    host says so, some log is always left."""
    logs = [it for it in exhibits if it.is_job]
    found = _by_note(logs, exhibits) | _by_name(logs, exhibits)
    for told in (_by_time(exhibits), _by_world(logs, exhibits), _by_name(logs)):
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
                if _OTHER.search(sentence):
                    told[path] = f"{os.path.basename(note.path)} says so"
    return told


def _by_world(logs: Sequence[Exhibit], exhibits: Iterable[Exhibit]) -> dict[str, str]:
    """Those of another number of ranks, where other files have processes of the rest alone."""
    pids = {row.pid for it in exhibits for row in it.processes} | {
        stack.pid for it in exhibits for stack in it.stacks if stack.pid is not None
    }
    told = [it for it in logs if len(it.worlds) == 1]
    sizes = {next(iter(it.worlds)) for it in told}
    if len(sizes) != 2:
        return {}
    seen = {size: sum(said.pid in pids for it in told if size in it.worlds for said in it.identities) for size in sizes}
    counts = {size: (seen[size], sum(size in it.worlds for it in told)) for size in sizes}
    main, rest = sorted(sizes, key=lambda size: counts[size], reverse=True)
    if counts[main] == counts[rest]:
        return {}
    return {it.path: f"it has {rest} ranks, and not {main}" for it in told if rest in it.worlds}


def _by_name(logs: Sequence[Exhibit], exhibits: Sequence[Exhibit] = ()) -> dict[str, str]:
    """Those whose names say so; with `exhibits`: and that are of another host than all other files."""
    named = [it for it in logs if _OTHER_NAME.search(os.path.basename(it.path))]
    if exhibits:
        rest = {it.host for it in exhibits if it not in named and it.host}
        named = [it for it in named if it.host and rest and it.host not in rest]
    return {it.path: "its name says so" for it in named}
