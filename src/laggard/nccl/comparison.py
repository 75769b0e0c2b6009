"""Two runs of NCCL compared by their logs: what an upgrade changed. Pure, standard library only."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from laggard.nccl.log.model import NcclLog, count_channels
from laggard.nccl.variable_table import Version
from laggard.nccl.variables import parse_version

_CHANNELS: Final = re.compile(r"\b(\d{1,4}) coll channels, .*?(\d{1,4}) p2p channels(?: per peer)?")
_CHOICE: Final = re.compile(
    r"\b(?:(\w{1,20}): )?(\d{1,15}) Bytes -> Algo (\w{1,20}) proto (\w{1,10})"
    r"(?: channel\{Lo\.\.Hi\}=\{(\d{1,5})\.\.(\d{1,5})\})?"
)
_ALGORITHMS: Final = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS: Final = ("LL", "LL128", "SIMPLE")
_MAX_CHOICES: Final = 10_000
_MAX_SHOWN: Final = 200
TRANSPORTS: Final = "transports"
"""The fact about channels by transport, network and GPUDirect."""


class MovedDefault(NamedTuple):
    """A default that a release changed."""

    variable: str
    since: Version
    before: str
    after: str


MOVED_DEFAULTS: Final = (
    MovedDefault("NCCL_IB_TIMEOUT", (2, 14), "14", "18"),
    MovedDefault("NCCL_CUMEM_ENABLE", (2, 19), "0", "auto"),
    MovedDefault("NCCL_IB_SPLIT_DATA_ON_QPS", (2, 20), "1", "0"),
    MovedDefault("NCCL_IB_GID_INDEX", (2, 21), "0", "found on each node"),
    MovedDefault("NCCL_IB_TIMEOUT", (2, 23), "18", "20"),
    MovedDefault("NCCL_ALGO", (2, 24), "falls back to ring", "fails where the list has no algorithm that works"),
    MovedDefault("NCCL_MAX_CTAS", (2, 25), "at most 32", "at most 64"),
    MovedDefault("NCCL_NET_GDR_C2C", (2, 27), "0", "1"),
    MovedDefault("NCCL_PXN_C2C", (2, 28), "0", "1"),
)
"""The defaults that changed, from NCCL's user guide and the source of its releases."""


class LogSummary(NamedTuple):
    """The facts that a log shows of a run, for comparison."""

    versions: tuple[str, ...]
    facts: Mapping[str, str]
    """By what they are about, what costs most first: the network, then how it is used."""
    variables: Mapping[str, str]
    choices: Mapping[str, str]
    """Algorithm and protocol by collective and size, where the TUNING subsystem is logged."""


class Change(NamedTuple):
    what: str
    old: str
    new: str


def find_choices(lines: Iterable[str]) -> tuple[dict[str, str], set[int], set[int]]:
    """Returns the choices by message, and the numbers of channels for collectives and for send and receive. Earlier
    NCCLs log numbers for algorithm and protocol."""
    choices: dict[str, str] = {}
    collective: set[int] = set()
    pairs: set[int] = set()
    for line in lines:
        if match := _CHANNELS.search(line):
            collective.add(int(match[1]))
            pairs.add(int(match[2]))
        elif len(choices) < _MAX_CHOICES and (match := _CHOICE.search(line)):
            channels = f", {int(match[6]) - int(match[5]) + 1} channels" if match[5] else ""
            name = f"{match[1]} of {match[2]} B" if match[1] else f"{match[2]} B"
            choices[name] = f"{_name(match[3], _ALGORITHMS)}/{_name(match[4], _PROTOCOLS)}{channels}"
    return choices, collective, pairs


def _name(word: str, names: tuple[str, ...]) -> str:
    return names[int(word)] if word.isdecimal() and int(word) < len(names) else word.upper()


def summarise(log: NcclLog, lines: Iterable[str]) -> LogSummary:
    choices, collective, pairs = find_choices(lines)
    connections = [connection for process in log.processes for connection in process.connections]
    nics: Counter[str] = Counter()
    for each in connections:
        if each.device is not None:
            nics[str(each.device)] += each.channels
    versions = _distinct((*(process.version for process in log.processes), *log.versions))
    facts = {
        "version": ", ".join(versions),
        "network": ", ".join(_distinct(process.network for process in log.processes)),
        TRANSPORTS: _counts(count_channels(connections)),
        "NICs used, by number": _counts(nics),
        "RDMA devices": ", ".join(sorted({name for each in log.processes for name in each.rdma_devices or ()})),
        "channels for collectives": ", ".join(map(str, sorted(collective))),
        "channels for send and receive": ", ".join(map(str, sorted(pairs))),
    }
    variables = {name: value for process in log.processes for name, value in process.variables}
    return LogSummary(versions, facts, variables, choices)


def _distinct(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, words)))


def compare(old: LogSummary, new: LogSummary) -> tuple[Change, ...]:
    """Returns what differs: the facts, then settings and choices."""
    changes = [
        *_differences(old.facts, new.facts, ""),
        *_differences(old.variables, new.variables, "not set"),
        *_differences(old.choices, new.choices, ""),
    ]
    return tuple(change for change in changes if change.old != change.new)[:_MAX_SHOWN]


def moved_defaults(old: LogSummary, new: LogSummary) -> tuple[MovedDefault, ...]:
    """Returns the defaults that moved between the two versions and that no variable sets, where both are known."""
    before = [parse_version(text) for text in old.versions]
    after = [parse_version(text) for text in new.versions]
    if not before or not after or () in (*before, *after):
        return ()
    return tuple(
        each for each in MOVED_DEFAULTS if min(before) < each.since <= max(after) and each.variable not in new.variables
    )


def _differences(old: Mapping[str, str], new: Mapping[str, str], absent: str) -> Iterable[Change]:
    """Yields what differs by name; without a word for `absent`, names that only one side has are no difference."""
    for name in dict.fromkeys((*old, *new)):
        if absent or (name in old and name in new):
            yield Change(name, old.get(name, absent), new.get(name, absent))


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {counts[name]}" for name in sorted(counts))
