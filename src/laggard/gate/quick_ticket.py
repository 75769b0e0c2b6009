"""The ticket: what the next prologs may ask this node's agent without starting laggard (deploy/slurm/gate.sh).

Python alone knows what its gate judges, and by which thresholds. A prolog that has run as a whole writes that down, for
an hour, in a folder of root's. Where the agent's report would not stand for its own probes, there is no ticket, nor
for a node that was drained when it was last looked at: who notices its resume has to run as a whole.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping

from laggard.gate.settings import GateSettings
from laggard.kit.constants import ACCEPTED_FILE, AGENT_PORT
from laggard.kit.environment import ENV_GATE_TICKET


def write_ticket(settings: GateSettings, environ: Mapping[str, str]) -> None:
    """Writes the ticket where the prolog asks for one: `SCHEMA PROFILE FINGERPRINT UPTIME`, with the uptime in
    hundredths of a second. What keeps it from being written keeps no job waiting: the next prolog runs as a whole."""
    path = environ.get(ENV_GATE_TICKET, "")
    if not path.startswith("/") or not _may_be_asked(settings):
        return
    from laggard.probes.choose import fingerprint
    from laggard.probes.profiles import PROFILE, SCHEMA, gate_profile

    if settings.subject.profile != gate_profile() or _is_known_as_drained(settings):
        return
    uptime = int(time.clock_gettime(time.CLOCK_BOOTTIME) * 100)
    line = f"{SCHEMA} {PROFILE} {fingerprint(settings.subject.host.node())} {uptime}\n"
    with contextlib.suppress(OSError):
        _replace(path, line.encode("ascii"))


def _is_known_as_drained(settings: GateSettings) -> bool:
    from laggard.gate.node_watch import remembered

    return remembered(settings, settings.subject.host.node()).seen_drained_at is not None


def _may_be_asked(settings: GateSettings) -> bool:
    """Whether the agent's report answers the same question as this run of the gate."""
    subject = settings.subject
    is_prolog = bool(settings.slurm.mode) and not settings.slurm.resume
    is_plain = settings.gang is None and not subject.active_probes and settings.accepted == ACCEPTED_FILE
    return is_prolog and is_plain and subject.agent_port == AGENT_PORT


def _replace(path: str, data: bytes) -> None:
    """Whoever reads it meanwhile reads the old one or the new one, as a whole."""
    new = f"{path}.{os.getpid()}"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)
    os.rename(new, path)
