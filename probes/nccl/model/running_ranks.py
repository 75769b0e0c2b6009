"""Reads the NCCL variables of the processes that run ranks on this machine, and nothing else of their environment.

A rank is a process that holds a GPU or a rank file open. Of its environment only names that begin with NCCL_ are kept,
and values only of known variables; the same holds for the settings file that it names. The rest does not leave this
file. Any user may start such processes, with any paths in their variables: time and size are bounded, and users take
turns, so that one user's processes, however many and large, do not push out another's.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple

import msgspec

from laggard.kit.environment import FALLBACK_RANK_DIR, SHARED_RANK_DIR
from laggard.kit.users import ACCOUNTS
from laggard.kit.words import lazy_pattern, printable_line
from laggard.nccl.variable_table import Version
from laggard.nccl.variables import ETC, NcclConf, may_be_shown, parse_conf, parse_version
from laggard.probes.errors import NotFound, Unknown
from laggard.probes.host.apart import HANGING, NoChild, Stopped, apart
from laggard.probes.host.host import Host

_HOLDS: Final = lazy_pattern(rf"/dev/nvidia[0-9]+|({SHARED_RANK_DIR}|{FALLBACK_RANK_DIR})/.*")
_NAME = lazy_pattern(r"NCCL_[A-Z0-9_]{1,80}")
_LIBRARY = lazy_pattern(r"/libnccl\.so(?:\.(\d{1,4}\.\d{1,4}\.\d{1,4})|\.\d{1,4})?(?: \(deleted\))?$")
_WHEEL = lazy_pattern(r"nvidia_nccl_cu\d+-(\d{1,4}\.\d{1,4}\.\d{1,4})\S*\.dist-info")

ReadNamed = Callable[[str, str], str]
"""Reads the file at a path that the user of a process (its id) chose. Raises NotFound and Unknown."""

SECONDS: Final = 1.2
"""The time for all processes together: who asks the reader waits a little longer."""

_MAX_VALUE_CHARACTERS: Final = 4096
_MAX_PATH_CHARACTERS: Final = 200
_MAX_PROCESS_CHARACTERS: Final = 16 << 10  # characters of names and values
_MAX_CHARACTERS: Final = 4 << 20  # of all processes, a fourth of what the reader may answer
_MAX_FILES: Final = 1 << 14
_MAX_LINES: Final = 16  # of a settings file, that have no effect
_STOPS: Final = "{} processes of users do not let themselves be read"
_REFUSED: Final = "laggard's reader may not read it either"


class RankProcess(NamedTuple):
    pid: int
    environment: Mapping[str, str]
    """Only NCCL_* variables: those of its environment, then those of its own settings file, then with `etc_read` those
    of /etc/nccl.conf."""
    conf: NcclConf
    """Its own settings file, as far as it may be told; the settings are in `environment`, too."""
    conf_path: str
    version: Version
    """Version of the NCCL that it has loaded; () where that is not known."""
    etc_read: bool = False
    """True where /etc/nccl.conf was read as the process sees it: a container has one of its own, or none."""


class RankProcesses(NamedTuple):
    processes: tuple[RankProcess, ...]
    not_permitted: int
    """The number of processes with an environment that this user may not read."""
    no_reader: str = ""
    """The reason why laggard's reader did not read them; empty where it was not asked."""
    unread: tuple[int, ...] = ()
    """The ids of those that are `not_permitted`."""
    left_out: int = 0
    """The number of processes that there was no time or room for; none of a recorded machine, which takes the time that
    it takes."""
    hanging: int = 0
    """The number of processes of users whose processes make everybody wait who reads them: those are not read."""


def read_rank_processes(host: Host) -> RankProcesses:
    """The rank processes of all users, where this process may read their environments or laggard's reader does. Raises
    Unknown where /proc cannot be listed."""
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


def read_own_rank_processes(host: Host, read_named: ReadNamed | None = None, seconds: float = SECONDS) -> RankProcesses:
    """The rank processes whose environment this process may read. `read_named` reads the settings files, whose paths
    the processes' users chose; else host.read_users_file() does. Raises Unknown where /proc cannot be listed."""
    read_named = read_named or host.read_users_file
    pids = [name for name in host.entries("/proc") if name.isdecimal()]
    if host.recorded:
        return _read(host, pids, read_named, math.inf, lambda pid: None)
    return _read_apart(host, pids, read_named, time.monotonic() + seconds)


def _read_apart(host: Host, pids: Iterable[str], read_named: ReadNamed, deadline: float) -> RankProcesses:
    """As _read(), in a process of its own: a user's process may make everybody wait who reads it. Raises Unknown."""
    hung = 0
    while True:
        wanted, hanging = HANGING.without(pids)
        wanted = list(_in_turn(_by_account(wanted)))
        read = partial(_read, host, wanted, read_named, deadline)
        try:
            data = apart(partial(_encoded, read))
        except Stopped as stopped:
            if not stopped.item:
                raise Unknown("a process of laggard's does not begin to read") from None
            HANGING.blame(stopped.item)
            hung += 1
            if time.monotonic() > deadline:
                raise Unknown(f"{_STOPS.format(hung)} within the time for all") from None
        except NoChild as error:
            raise Unknown(f"cannot read other users' processes: {error}") from None
        else:
            return msgspec.json.decode(data, type=RankProcesses)._replace(hanging=hanging)


def _by_account(pids: Iterable[str]) -> Collection[list[str]]:
    """The processes by the account that runs them, as the kernel shows it without being held up."""
    found: dict[int, list[str]] = {}
    for pid in pids:
        try:
            uid = os.stat(f"/proc/{pid}").st_uid
        except OSError:  # it has ended, which its reader will find
            uid = 0
        found.setdefault(ACCOUNTS.account_of(uid), []).append(pid)
    return found.values()


def _encoded(read: Callable[[Callable[[int], None]], RankProcesses], note: Callable[[int], None]) -> bytes:
    return msgspec.json.encode(read(note))


def _read(
    host: Host, pids: Collection[str], read_named: ReadNamed, deadline: float, note: Callable[[int], None]
) -> RankProcesses:
    """`note` is called with each process before it is read."""
    candidates: dict[str, list[str]] = {}  # by user
    processes: list[RankProcess] = []
    unread: list[int] = []
    looked_at = room = 0
    for pid in _until(deadline, pids):
        looked_at += 1
        note(int(pid))
        try:
            if b"NCCL_" in host.read_bytes(f"/proc/{pid}/environ"):  # the cheap test: there are many processes
                candidates.setdefault(host.process_user(pid), []).append(pid)
        except NotFound:  # it ended, or the recording lacks these files
            continue
        except Unknown:
            unread.append(int(pid))
    left_out = len(pids) - looked_at + sum(map(len, candidates.values()))
    for pid in _until(deadline, _in_turn(candidates.values())):
        left_out -= 1
        note(int(pid))
        try:
            found = _rank_process(host, pid, read_named)
        except NotFound:
            continue
        except Unknown:
            unread.append(int(pid))
            continue
        room += sum(len(name) + len(value) for name, value in found.environment.items()) if found else 0
        if room > _MAX_CHARACTERS:
            left_out += 1
            break
        processes += [found] if found else []
    return RankProcesses(tuple(processes), len(unread), unread=tuple(unread), left_out=left_out)


def _until(deadline: float, pids: Iterable[str]) -> Iterator[str]:
    return itertools.takewhile(lambda _: time.monotonic() < deadline, pids)


def _in_turn(queues: Iterable[list[str]]) -> Iterator[str]:
    """The first of each, then the second of each, and so on."""
    return (pid for turn in itertools.zip_longest(*queues) for pid in turn if pid is not None)


def _rank_process(host: Host, pid: str, read: ReadNamed) -> RankProcess | None:
    """None where it holds no GPU and no rank file."""
    if not _holds_a_gpu(host, pid):
        return None
    entries = host.read_bytes(f"/proc/{pid}/environ").decode(errors="replace").split("\0")
    everything = {name: value for name, sign, value in (entry.partition("=") for entry in entries) if sign}
    conf_path = everything.get("NCCL_CONF_FILE") or f"{everything.get('HOME', '')}/.nccl.conf"
    conf = _read_conf(pid, conf_path, read) or NcclConf({}, ())
    etc = _read_conf(pid, ETC, read)
    merged = {**(etc.settings if etc else {}), **conf.settings, **everything}
    return RankProcess(
        int(pid),
        _shown({name: value for name, value in merged.items() if _NAME.fullmatch(name)}),
        conf,
        printable_line(conf_path, _MAX_PATH_CHARACTERS),
        _version(host, pid),
        etc is not None,
    )


def _read_conf(pid: str, path: str, read: ReadNamed) -> NcclConf | None:
    """The part that may be told of a settings file as the process sees it, which may run in a container; empty where it
    has none. None where its user may not read it, or this one."""
    if not path.startswith("/"):
        return None
    try:
        return _told(parse_conf(read(f"/proc/{pid}/root{path}", pid)))
    except NotFound:
        return NcclConf({}, ())
    except Unknown:
        return None


def _told(conf: NcclConf) -> NcclConf:
    settings = _shown({name: value for name, value in conf.settings.items() if _NAME.fullmatch(name)})
    ineffective = (
        (number, printable_line(reason, _MAX_PATH_CHARACTERS)) for number, reason in conf.ineffective[:_MAX_LINES]
    )
    return NcclConf(settings, tuple(ineffective))


def _shown(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables, known ones first, as far as there is room; without the values that may be secrets."""
    shown: dict[str, str] = {}
    room = _MAX_PROCESS_CHARACTERS
    for name in sorted(variables, key=lambda name: not may_be_shown(name)):
        value = variables[name][:_MAX_VALUE_CHARACTERS] if may_be_shown(name) else ""
        room -= len(name) + len(value)
        if room < 0:
            break
        shown[name] = value
    return shown


def _holds_a_gpu(host: Host, pid: str) -> bool:
    for number in host.entries(f"/proc/{pid}/fd")[:_MAX_FILES]:
        try:
            if _HOLDS.fullmatch(host.read_link(f"/proc/{pid}/fd/{number}")):
                return True
        except NotFound:  # closed meanwhile
            continue
    return False


def _version(host: Host, pid: str) -> Version:
    """Returns the version in the name of the library's file, else the one in the folder that pip made next to it."""
    try:
        path, version = _library(host.read(f"/proc/{pid}/maps"))
        if version or not path:
            return parse_version(version)
        packages = f"/proc/{pid}/root{path.rsplit('/', 3)[0]}"  # PACKAGES/nvidia/nccl/lib
        found = [wheel[1] for name in host.entries(packages) if (wheel := _WHEEL.fullmatch(name))]
    except Unknown:
        return ()
    return parse_version(found[0]) if len(found) == 1 else ()


def _library(maps: str) -> tuple[str, str]:
    """The folder of the NCCL that is mapped, and the version in its name; empty where there is none. The paths are the
    user's, so each is looked at once: from its end."""
    for line in maps.splitlines():
        name = _LIBRARY.search(line, max(0, line.rfind("/"))) if "/libnccl.so" in line else None
        if name:
            return line[line.index("/") : name.start()], name[1] or ""
    return "", ""
