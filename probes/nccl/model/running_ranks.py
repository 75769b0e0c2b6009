"""Reads the NCCL variables of the processes that run ranks on this machine, and nothing else of their environment.

A rank is a process that holds a GPU or a rank file open. Of its environment only names that begin with NCCL_ are kept,
and values only of known variables; the rest does not leave this file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from laggard.environment import FALLBACK_RANK_DIR, SHARED_RANK_DIR
from laggard.nccl.conf import ETC, NcclConf, parse_conf
from laggard.nccl.variable_table import Version
from laggard.nccl.variables import may_be_shown, parse_version
from laggard.probes.errors import NotFound, Unknown
from laggard.probes.host.host import Host

_HOLDS: Final = re.compile(rf"/dev/nvidia[0-9]+|({SHARED_RANK_DIR}|{FALLBACK_RANK_DIR})/.*")
_NAME = re.compile(r"NCCL_[A-Z0-9_]{1,80}")
_LIBRARY = re.compile(r"/\S*/libnccl\.so(?:\.(\d+\.\d+\.\d+)|\.\d+)?\b")
_WHEEL = re.compile(r"nvidia_nccl_cu\d+-(\d+\.\d+\.\d+)\S*\.dist-info")
_MOST_VALUE = 4096
_REFUSED: Final = "laggard's reader may not read it either"


class RankProcess(NamedTuple):
    pid: int
    environment: Mapping[str, str]
    """Only NCCL_* variables: those of its environment, then those of its own settings file, then with `etc_read` those
    of /etc/nccl.conf."""
    conf: NcclConf
    """Of its own settings file the lines without effect; the settings are in `environment`."""
    conf_path: str
    version: Version
    """Version of the NCCL that it has loaded; () where that is not known."""
    etc_read: bool = False
    """Whether /etc/nccl.conf was read as the process sees it: a container has one of its own, or none."""


class RankProcesses(NamedTuple):
    processes: tuple[RankProcess, ...]
    not_permitted: int
    """How many processes have an environment that this user may not read."""
    no_reader: str = ""
    """Why laggard's reader did not read them; empty where it was not asked."""
    unread: tuple[int, ...] = ()
    """The ids of these processes."""


def read_rank_processes(host: Host) -> RankProcesses:
    """Of all users, where this process may read their environments or laggard's reader does. Raises Unknown where /proc
    cannot be listed."""
    own = read_own_rank_processes(host)
    if own.not_permitted and not host.recorded:
        from laggard.probes.host.reader import NoReader, ask  # sockets are slow to import, and root needs none

        try:
            found = msgspec.json.decode(ask("rank_processes"), type=RankProcesses)
            return found._replace(no_reader=_REFUSED) if found.not_permitted else found
        except NoReader as error:
            return own._replace(no_reader=str(error.strerror))
        except msgspec.MsgspecError:
            return own._replace(no_reader="laggard's reader answers something else")
    return own


def read_own_rank_processes(host: Host, read_named: Callable[[str], str] | None = None) -> RankProcesses:
    """Of the processes whose environment this process may read. `read_named` reads the settings files, whose paths the
    processes' users chose; else host.read() does. Raises Unknown where /proc cannot be listed."""
    read_named = read_named or host.read
    processes: list[RankProcess] = []
    unread: list[int] = []
    for name in host.entries("/proc"):
        if not name.isdecimal():
            continue
        try:
            processes += _rank_process(host, name, read_named)
        except NotFound:  # it ended, or the recording lacks these files
            continue
        except Unknown:
            unread.append(int(name))
    return RankProcesses(tuple(processes), len(unread), unread=tuple(unread))


def _rank_process(host: Host, pid: str, read: Callable[[str], str]) -> Iterator[RankProcess]:
    data = host.read_bytes(f"/proc/{pid}/environ")
    if b"NCCL_" not in data or not _holds_a_gpu(host, pid):  # the cheap test comes first: there are many processes
        return
    everything = dict(_pairs(data.decode(errors="replace")))
    conf_path = everything.get("NCCL_CONF_FILE") or f"{everything.get('HOME', '')}/.nccl.conf"
    conf = _read_conf(host, pid, conf_path, read) or NcclConf({}, ())
    etc = _read_conf(host, pid, ETC, read)
    merged = {**(etc.settings if etc else {}), **conf.settings, **everything}
    yield RankProcess(
        int(pid),
        {name: _known_value(name, value) for name, value in merged.items() if _NAME.fullmatch(name)},
        NcclConf({}, conf.ineffective),
        conf_path,
        _version(host, pid),
        etc is not None,
    )


def _read_conf(host: Host, pid: str, path: str, read: Callable[[str], str]) -> NcclConf | None:
    """Reads a settings file as the process sees it, which may run in a container; empty where it has none. None where
    this user may not read it."""
    if not path.startswith("/"):
        return None
    try:
        return parse_conf(read(f"/proc/{pid}/root{path}"))
    except NotFound:
        if not host.recorded:
            return NcclConf({}, ())
    except Unknown:
        return None
    try:
        return parse_conf(read(path)) if path != ETC else None  # a recording from before there were such paths
    except Unknown:
        return None


def _holds_a_gpu(host: Host, pid: str) -> bool:
    for number in host.entries(f"/proc/{pid}/fd"):
        try:
            if _HOLDS.fullmatch(host.read_link(f"/proc/{pid}/fd/{number}")):
                return True
        except NotFound:  # closed meanwhile
            continue
    return False


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for entry in text.split("\0"):
        name, sign, value = entry.partition("=")
        if sign:
            yield name, value


def _known_value(name: str, value: str) -> str:
    return value[:_MOST_VALUE] if may_be_shown(name) else ""


def _version(host: Host, pid: str) -> Version:
    """Returns the version in the name of the library's file, else the one in the folder that pip made next to it."""
    try:
        match = _LIBRARY.search(host.read(f"/proc/{pid}/maps"))
        if match is None or match[1]:
            return parse_version(match[1]) if match else ()
        packages = f"/proc/{pid}/root{match[0].rsplit('/', 4)[0]}"  # PACKAGES/nvidia/nccl/lib/libnccl.so.2
        found = [wheel[1] for name in host.entries(packages) if (wheel := _WHEEL.fullmatch(name))]
    except Unknown:
        return ()
    return parse_version(found[0]) if len(found) == 1 else ()
