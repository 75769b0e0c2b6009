"""statvfs of mount points with a deadline: a dead file server is not waited for, since each server is asked by a
process of its own, a group of probes. Where one survives SIGKILL the runner starts no second one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from laggard.model import Finding, ProbeResult
from laggard.probes.host.host import Host
from laggard.probes.host.kernel import StatvfsReply
from laggard.probes.nvml.model import Hang
from laggard.probes.probe import Fact, Probe, ProbeGroup, Thresholds, finding

_SILENT: Final = "silent_seconds"


def query_statvfs(host: Host, points: Mapping[str, Sequence[str]], seconds: float) -> dict[str, StatvfsReply]:
    """The replies by mount point, within `seconds`. `points`: the mount points by server. Where a server gives no
    answer for a mount point, the points after it are not asked."""
    groups = {server: ProbeGroup(f"statvfs {server}", seconds) for server in points}
    probes = [
        Probe(point, partial(_ask, point, seconds), Thresholds(), group=groups[server], on_hang=_silence)
        for server, of_server in points.items()
        for point in of_server
    ]
    report = host.run(probes, deadline_seconds=seconds)

    def reply(result: ProbeResult) -> StatvfsReply:
        silent = [report.findings[place].evidence[_SILENT] for place in result.findings]
        error = report.facts.get(result.name, {}).get("error", result.unknown)
        return StatvfsReply(silent_seconds=silent[0]) if silent else StatvfsReply(error=error)

    return {result.name: reply(result) for result in report.probes}


def _ask(point: str, seconds: float, host: Host, _: Thresholds) -> Iterator[Fact]:
    if host.watchdog:
        host.watchdog.announce(f"statvfs {point}", seconds)
    try:
        os.statvfs(point)
        yield Fact("error", "")
    except OSError as error:
        yield Fact("error", error.strerror or str(error))


def _silence(hang: Hang) -> Finding:
    """What carries the time for which the server has been silent."""
    return finding("MOUNT_HUNG", hang.call, "hangs", evidence={_SILENT: max(hang.seconds, hang.limit_seconds)}, fix="")
