"""`laggard healthcheck record DIR`: copies what the probes read here, for a bug report or a test; `--host-root DIR`
replays it."""

from __future__ import annotations

import argparse
import contextlib
import os
import stat
import sys
from typing import Any

from laggard import wire
from laggard.kit.errors import UsageError
from laggard.kit.parts import Line
from laggard.kit.progress import Bar
from laggard.kit.terminal import show_or_write
from laggard.model import Report
from laggard.probes.choose import choose_probes
from laggard.probes.errors import Unknown, or_none
from laggard.probes.host.host import Host, open_host
from laggard.probes.host.kernel import FACTS_PATH
from laggard.probes.host.mount_table import REMOTE_TYPES, read_mounts
from laggard.probes.probe import Probe
from laggard.probes.profiles import PROFILES
from laggard.probes.record.journal import SWEEP, write_documents
from laggard.probes.record.masking import Mask
from laggard.probes.record.recorder import RecordingHost
from laggard.probes.runner.runner import run
from laggard.probes.runner.state_file import FILE_NAME, RECORDED_PATH, read_state

_DEADLINE_SECONDS = 240.0
_PROBE_SECONDS = 45.0  # to record takes longer than to read, and a machine that is worth a report may be busy


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "exit status: 0 recorded, and it replays as the machine was judged; 2 recorded, but it replays differently"
    )
    parser.add_argument("directory", metavar="DIR", help="where to; is created, or is empty")
    parser.add_argument("--host-root", metavar="DIR", help="record the machine recorded in DIR instead of this one")
    parser.add_argument(
        "--mask",
        action="store_true",
        help="hide host and user names, IP and MAC addresses, GUIDs, UUIDs, serial numbers",
    )


def main(arguments: argparse.Namespace) -> int:
    source = open_host(arguments.host_root)
    folder = _make_empty_folder(arguments.directory)
    probes = tuple(_with_long_deadline(probe) for probe in choose_probes(PROFILES["full"], (), (), "profile full"))
    with Bar() as bar:  # and not Progress, whose thread would be there when the probes' processes are forked
        _begin(bar, f"running {len(probes)} probes")
        recorded = _record(source, folder, probes, bar)
        if arguments.mask:
            _begin(bar, "masking names, addresses and serial numbers")
            _mask(folder, Mask(_names(source)))
        bar.show(None, "replaying it")
        replayed = run(Host(folder), probes, deadline_seconds=_DEADLINE_SECONDS)
    count = sum(len(files) for _, _, files in os.walk(folder))
    command = f"laggard healthcheck --host-root {folder}"
    kept = f"laggard: {count} files of {replayed.node} are in {folder};"
    show_or_write(lambda: [Line(f"{kept} replay it:", command=command)], lambda: f"{kept} {command} replays it\n")
    return _compare(recorded, replayed)


def _record(source: Host, folder: str, probes: tuple[Probe, ...], bar: Bar) -> Report:
    """The report of the machine, made while its answers are recorded."""
    facts = _prepare(source, folder)
    host = RecordingHost(source.root, folder)
    with contextlib.suppress(Unknown):  # a recorded machine of files alone has no time
        host.time()
    report = run(host, probes, deadline_seconds=_DEADLINE_SECONDS)
    _begin(bar, "copying the files that probes read on other machines")
    swept = run(host, [SWEEP], deadline_seconds=_DEADLINE_SECONDS)
    if swept.probes[0].reason:
        bar.clear()
        _print_progress(f"not all of it: {swept.probes[0].reason}")
    write_documents(folder, facts)
    return report


def _with_long_deadline(probe: Probe) -> Probe:
    group = probe.group and probe.group._replace(deadline_seconds=max(_PROBE_SECONDS, probe.group.deadline_seconds))
    return probe._replace(deadline_seconds=max(_PROBE_SECONDS, probe.deadline_seconds), group=group)


def _prepare(source: Host, folder: str) -> dict[str, Any]:
    """Copies the counters' snapshots of earlier runs into `folder`. Returns the facts of a recorded machine, and none
    for a live one."""
    os.mkdir(f"{folder}/laggard")
    snapshots = None if source.recorded else or_none(read_state, FILE_NAME)
    if snapshots:
        with open(folder + RECORDED_PATH, "wb") as file:
            file.write(snapshots)
    try:
        return dict(wire.decode(source.read_bytes(FACTS_PATH), dict[str, Any])) if source.recorded else {}
    except (Unknown, wire.WireError):
        return {}


def _mask(folder: str, mask: Mask) -> None:
    """Masks the text files and the symlinks in `folder`. Other files hold no names."""
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(place, name)
            if os.path.islink(path):
                target = os.readlink(path)
                if mask.text(target) != target:
                    os.unlink(path)
                    os.symlink(mask.text(target), path)
            elif os.path.isfile(path):
                _mask_file(path, mask)


def _mask_file(path: str, mask: Mask) -> None:
    with open(path, "rb") as file:
        data = file.read()
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    masked = mask.text(text)
    if masked != text:
        with open(path, "w", encoding="utf-8") as file:
            file.write(masked)


def _names(source: Host) -> set[str]:
    """The names to mask: of this host, with and without its domain, and of its file servers. A server called nfs keeps
    its name, which is also a type of file system."""
    node = source.node()
    servers: set[str] = set()
    with contextlib.suppress(Unknown):
        servers = {server for mount in read_mounts(source) if mount.remote for server in mount.servers}
    return {node, node.partition(".")[0]} | (servers - REMOTE_TYPES)


def _compare(recorded: Report, replayed: Report) -> int:
    """Reports each probe that replays differently, and returns the exit status. What hung, or changed meanwhile, cannot
    be replayed."""
    before, after = _verdicts(recorded), _verdicts(replayed)
    for name in before:
        if before[name] != after[name]:
            _print_progress(f"probe {name} replays differently: {after[name]} instead of {before[name]}")
    return 0 if before == after else 2


def _verdicts(report: Report) -> dict[str, str]:
    verdicts = {result.name: result.verdict.value for result in report.probes}
    codes = sorted(f"{finding.code} ({finding.severity.value})" for finding in report.findings)
    return {**verdicts, "findings": ", ".join(codes) or "nothing found"}


def _make_empty_folder(directory: str) -> str:
    try:
        os.makedirs(directory, exist_ok=True)
        if os.listdir(directory):
            raise UsageError(f"{directory} is not empty: name a new folder, or empty this one")
    except OSError as error:
        raise UsageError(f"cannot record into {directory}: {error.strerror}") from None
    folder = os.path.realpath(directory)
    if os.geteuid() == 0 and (place := _exchangeable(folder)):
        why = f"{place} is not root's alone: who may write there could lead root elsewhere"
        raise UsageError(f"cannot record into {directory}: {why}; name a folder in /tmp")
    return folder


def _exchangeable(folder: str) -> str:
    """The folder, or the first above it, of which another user could put something else in its place while root writes
    there; empty where there is none. In a sticky folder, as /tmp is one, everybody keeps what is theirs. Who calls by
    sudo is trusted with their own."""
    caller = os.environ.get("SUDO_UID", "")
    trusted = {0, int(caller) if caller.isdecimal() else 0}
    place = folder
    while True:
        about = os.lstat(place)
        is_shared = about.st_mode & 0o022 and (place == folder or not about.st_mode & stat.S_ISVTX)
        if about.st_uid not in trusted or is_shared:
            return place
        if place == "/":
            return ""
        place = os.path.dirname(place)


def _begin(bar: Bar, stage: str) -> None:
    """A terminal has one line for all stages, a log a line for each."""
    if bar.shown:
        bar.show(None, stage)
    else:
        _print_progress(stage)


def _print_progress(text: str) -> None:
    print(f"laggard: {text}", file=sys.stderr)
