"""The paste `systemctl status` of NVIDIA's own services: the fabric manager, the persistence daemon, DCGM and IMEX."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.diagnose.file_format import takes_all
from laggard.diagnose.pastes.section import Items, Section, parts_of, paste_format
from laggard.diagnose.rules import patterns, table
from laggard.model import Finding, Fix, Severity
from laggard.probes.probe import Fact

_P: Final = patterns("paste_forms", "services_")

_MAX_TOLD_LINES: Final = 5
_BY_SYSTEMD: Final = "systemd"


NVIDIA_SERVICES: Final = table("services")


def read_services(section: Section) -> Items:
    services = [(head[1], body) for head, body in parts_of(_P["head"], section.text)]
    states = {name: found["state"] for name, body in services if (found := _P["active"].search(body))}
    yield Fact("services", states)
    for name, body in services:
        yield from _judge(name, states.get(name, ""), body)


def _judge(name: str, state: str, body: str) -> Iterator[Finding]:
    """Judges one service. It is well where it is active; one that is inactive because nobody enabled it may be."""
    if state.startswith(("active", "reloading")) or not state:
        return
    lines = list(_P["log"].finditer(body))
    said = [line["text"] for line in lines if line["unit"] != _BY_SYSTEMD and _P["telling"].search(line["text"])]
    if _P["nothing_to_do"].search(body):
        return
    service = NVIDIA_SERVICES.first(name)
    assert service is not None  # the last one takes all
    code, severity, fix = service.code, service.severity, service.fix.text
    if code == "GPU_PERSISTENCE_OFF" and _P["devices"].search(body):
        code, severity = "GPU_DRIVER_FAILED", Severity.CRITICAL
        fix = "Load the driver (`modprobe nvidia`) and see why it did not start; then start nvidia-persistenced."
    elif state.startswith("inactive"):
        severity = Severity.WARNING
    mismatch = _P["mismatch"].search(body)
    why = f": version {mismatch[1]} does not match the driver's {mismatch[2]}" if mismatch else ""
    reason = why or (f": {said[-1][:300]}" if said else "")
    commands = (f"journalctl -b -u {name}", f"systemctl restart {name}", "cat /proc/driver/nvidia/version")
    evidence = {"host": lines[0]["host"] if lines else None, "said": said[-_MAX_TOLD_LINES:] or None}
    told = f"does not run ({state}){reason}"
    row = service._replace(code=code, device=service.says or f"{name}.service", says=told, fix=Fix(fix, commands))
    yield row.found(evidence, severity)


SERVICE_STATUS: Final = paste_format("systemctl status", _P["head"], read_services)._replace(takes=takes_all)
