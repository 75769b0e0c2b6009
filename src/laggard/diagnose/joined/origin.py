"""The rank and the host that a file is of, by its name and its folders. What stands in the file counts more."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

_RANK = re.compile(r"(?<![a-z])(?:global[-_ ]?)?(?:rank|task|proc)[-_=. ]{0,2}(\d{1,7})(?!\d)", re.IGNORECASE)
_LOCAL = re.compile(r"(?<![a-z])local[-_ ]?rank[-_=. ]{0,2}(\d{1,5})(?!\d)", re.IGNORECASE)
_TORCHRUN = re.compile(r"attempt_(\d{1,4})/(\d{1,5})/(?:stdout|stderr)\.log$")
_COUNTED = re.compile(r"^(.*?)(\d{1,7})((?:\.(?:log|txt|out|err|stdout|stderr))*)$")
_HOST = re.compile(
    r"(?<![a-z0-9])((?:host|node|nid|worker|server|machine|dgx|hgx|cn|ip)"
    r"(?:[-_]?\d+[a-z0-9]*(?:-\d+){0,4}|[-_]?[a-z](?![a-z0-9]))|gpu[-_]?\d{2,6}|n\d{1,6})(?![a-z0-9])",
    re.IGNORECASE,
)
_GENERIC = re.compile(
    r"(?:attempt|rank|local|run|job|step|task|slurm|try|restart|version|part|epoch|log|out|err|tmp|ckpt|checkpoint|kernel"
    r"|dmesg|launcher|torchrun|console|tool|net|network|sys|system|syslog|recording|dump|ras|trace)[-_]?s?[-_]?\d*|\d+"
    r"|(?:std)?(?:logs?|out|err)(?:puts?)?",
    re.IGNORECASE,
)
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
    if found := _TORCHRUN.search(path):
        return Origin(None, int(found[2]), host, int(found[1]))
    if found := _LOCAL.search(path):
        return Origin(None, int(found[1]), host)
    if found := _last(_RANK, path):
        return Origin(int(found[1]), None, host)
    if is_counted and (found := _COUNTED.match(words[-1])):
        return Origin(int(found[2]), None, host)
    return Origin(host=host)


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return next(iter(reversed(list(pattern.finditer(text)))), None)


def _named_host(words: Sequence[str]) -> str | None:
    """A host that a folder or the file is named after: `host-a/dmesg.txt`, `dmesg-n2.log`."""
    for word in (*words[:-1], words[-1].partition(".")[0], words[-1]):
        if found := _HOST.search(word):
            return found[1]
    return None


def _counted_names(files: Iterable[Sequence[str]]) -> frozenset[tuple[str, ...]]:
    """The files whose names count from 0 without a gap, beside one another: `out.0`, `out.1`, ...: a file a rank."""
    groups: dict[tuple[tuple[str, ...], str, str], dict[int, tuple[str, ...]]] = {}
    for words in files:
        if (found := _COUNTED.match(words[-1])) and not _HOST.search(words[-1]):
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
    return frozenset(name for names in alike for name in names if not _GENERIC.fullmatch(name))
