"""What the ranks and hosts of one job say of themselves, line by line: interfaces, adapters, versions, variables.

A line of NCCL, or one with a rank's or host's head, is cut into what it is about and the value. Where all speakers have
said it once, their values are compared. What must differ is told by the values themselves: of three speakers and more,
values that differ for each one are names, addresses and the like. Of two, what has the form of one is left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from laggard.diagnose.job.lines import LineParser
from laggard.diagnose.rules import patterns
from laggard.kit.words import listed
from laggard.locate.shares import HALF
from laggard.model import Finding, Severity
from laggard.probes.probe import finding

_P: Final = patterns("compared")

_MAX_LINES: Final = 10_000
_MAX_CHARACTERS: Final = 8 << 20
"""The most that is searched of all files: who starts says his settings first."""
_MAX_LINE: Final = 500
_MAX_KEYS: Final = 256
"""The most things that are remembered of one speaker."""
_MAX_SPEAKERS: Final = 512
_MAX_SHOWN: Final = 6
_MAX_VALUE: Final = 120
_LINK_LOCAL: Final = ("fe80:", "169.254.")


class Speaker(NamedTuple):
    """`host` and `process`, the rank or the number of the process; empty: the line does not name it."""

    host: str
    process: str

    def __str__(self) -> str:
        return self.host or f"rank {self.process}"


class _Said(NamedTuple):
    value: str
    line: str


class SettingsReader:
    """Takes the pieces of the files of one job, and compares."""

    def __init__(self) -> None:
        self._said: dict[Speaker, dict[str, list[_Said]]] = {}
        self._parser = LineParser()
        self._lines = self._searched = 0

    def feed(self, piece: str, host: str = "") -> None:
        """`host`: the machine that the file is of, where it is known."""
        piece = piece[: _MAX_CHARACTERS - self._searched]
        self._searched += len(piece)
        for found in _P["says"].finditer(piece):
            if self._lines >= _MAX_LINES:
                return
            start = piece.rfind("\n", max(0, found.start() - _MAX_LINE), found.start()) + 1
            line = piece[max(start, found.start() - _MAX_LINE) : found.start() + _MAX_LINE].partition("\n")[0]
            self._lines += 1
            self._take(line, host)

    def _take(self, line: str, host: str) -> None:
        if nccl := _P["nccl"].search(line):
            speaker, text = Speaker(nccl["host"], nccl["pid"]), nccl["text"]
        else:
            head = self._parser.parse(line)
            rank = head.rank if head.rank is not None else head.task
            speaker, text = Speaker(head.host or host, "" if rank is None else str(rank)), head.text
        said = _P["key"].match(text.strip())
        if (
            said is None
            or speaker == Speaker("", "")
            or (speaker not in self._said and len(self._said) >= _MAX_SPEAKERS)
        ):
            return
        of_speaker = self._said.setdefault(speaker, {})
        if said["key"] in of_speaker or len(of_speaker) < _MAX_KEYS:
            values = of_speaker.setdefault(said["key"].strip(), [])
            if len(values) < 2 and all(it.value != said["value"] for it in values):
                values.append(_Said(said["value"], line.strip()))

    def findings(self) -> list[Finding]:
        """Returns a finding for each kind of what differs: how ranks meet, NCCL's versions, and the rest."""
        kinds: dict[str, list[_Differs]] = {}
        for each in _differences(self._by_place()):
            kinds.setdefault(each.code, []).append(each)
        return [_finding(code, found) for code, found in kinds.items()]

    def _by_place(self) -> dict[Speaker, dict[str, _Said]]:
        """What each host says, or each rank where no two hosts are named; of hosts, what all its processes agree on."""
        hosts = {speaker.host for speaker in self._said}
        places: dict[Speaker, dict[str, _Said]] = {}
        unlike: set[tuple[Speaker, str]] = set()
        for speaker, of_key in self._said.items():
            place = Speaker(speaker.host, "") if len(hosts - {""}) > 1 else Speaker("", speaker.process)
            for key, values in of_key.items():
                kept = places.setdefault(place, {}).setdefault(key, values[0])
                alike = len(values) == 1 and _plain(kept.value, speaker.host, key) == _plain(
                    values[0].value, speaker.host, key
                )
                unlike |= set() if alike else {(place, key)}
        for place, key in unlike:
            places[place].pop(key, None)
        return {place: of_key for place, of_key in places.items() if place != Speaker("", "")}


class _Differs(NamedTuple):
    """`odd`: those with another value than most; of two, both."""

    code: str
    key: str
    odd: tuple[Speaker, ...]
    values: Mapping[Speaker, _Said]
    usual: str


def _differences(places: Mapping[Speaker, Mapping[str, _Said]]) -> Iterator[_Differs]:
    if len(places) < 2:
        return
    for key in next(iter(places.values())):
        values = {place: of_key[key] for place, of_key in places.items() if key in of_key}
        if len(values) < len(places):
            continue
        plain = {place: _plain(it.value, place.host, key) for place, it in values.items()}
        counts = Counter(plain.values()).most_common()
        (usual, most), *rest = counts
        if rest and (len(values) == 2 or most > HALF * len(values)):
            odd = tuple(place for place, value in plain.items() if value != usual or len(values) == 2)
            yield _Differs(_code(key, [it.value for it in values.values()]), key, odd, values, _usual(values, odd))


def _usual(values: Mapping[Speaker, _Said], odd: tuple[Speaker, ...]) -> str:
    return next((it.value for place, it in values.items() if place not in odd), "")


def _plain(value: str, host: str, key: str) -> str:
    """The value without what differs by design: the speaker's own name, addresses, and numbers that count nothing."""
    text = value.replace(host, "@") if host else value
    kept = (
        _P["interface"].findall(text)
        + _P["adapter"].findall(text)
        + _P["version"].findall(_P["address"].sub("#", text))
    )
    if _P["counts"].search(key):
        kept += _P["number"].findall(_P["address"].sub("#", text))
    bare = _P["number"].sub("#", _P["address"].sub("#", _P["interface"].sub("#", text)))
    return " ".join([re.sub(r"[#:%<>.,\s]+", "#", bare), *kept])


def _code(key: str, values: list[str]) -> str:
    if _P["of_meeting"].search(key) or (any(map(_P["interface"].search, values)) and "sing" in key):
        return "JOB_RENDEZVOUS_FAILED"
    if re.search(r"[NR]CCL.*[Vv]ersion", key):
        return "NCCL_VERSION_MIXED"
    adapters = {len(_P["adapter"].findall(value)) for value in values}
    return "RDMA_DEVICE_MISSING" if len(adapters) > 1 else "FLEET_OUTLIER"


def _finding(code: str, found: list[_Differs]) -> Finding:
    first = found[0]
    told = [_told(each) for each in found]
    who = listed([str(place) for place in first.odd], _MAX_SHOWN)
    return finding(
        code,
        who,
        f"{'differ' if len(first.odd) > 1 else 'differs from the others'}: {told[0]}",
        evidence={
            "line": first.values[first.odd[0]].line,
            "differences": told[:_MAX_SHOWN],
            "host": first.odd[0].host if len(first.odd) == 1 and first.odd[0].host else None,
        },
        fix=_fix(code, first),
        severity=Severity.CRITICAL if _cannot_meet(code, first) else Severity.WARNING,
    )


def _cannot_meet(code: str, first: _Differs) -> bool:
    """Whether some are told to meet at an address of one link alone, and some at another: no router joins these."""
    local = [any(it in each.value for it in _LINK_LOCAL) for each in first.values.values()]
    return code == "JOB_RENDEZVOUS_FAILED" and any(local) and not all(local)


def _told(each: _Differs) -> str:
    of_odd = [f"{_short(each.values[place].value)} on {place}" for place in each.odd[:_MAX_SHOWN]]
    others = f", and {_short(each.usual)} on the {len(each.values) - len(each.odd)} others" if each.usual else ""
    return f"{each.key.strip(' :=')} {', '.join(of_odd)}{others}"


def _short(value: str) -> str:
    return value.strip()[:_MAX_VALUE]


def _fix(code: str, first: _Differs) -> str:
    if code != "JOB_RENDEZVOUS_FAILED":
        return "Make them alike: the same image, modules and variables on each host; then compare once more."
    good = [it.value for it in first.values.values() if not any(bad in it.value for bad in _LINK_LOCAL)]
    named = _P["interface"].search(first.usual or next(iter(good), ""))
    local = " (an fe80:: or 169.254. address is of one link alone)" if len(good) < len(first.values) else ""
    name = f"NCCL_SOCKET_IFNAME={named[0]}" if named else "NCCL_SOCKET_IFNAME, or the launcher's setting,"
    return f"Ranks meet over one network: set {name} on all hosts, if each has that interface{local}."
