"""The services that jobs need, of those that systemd starts at boot: whether each runs now."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from laggard.model import Severity
from laggard.probes.errors import NotFound, or_none
from laggard.probes.gpu.model.pci_devices import exists
from laggard.probes.host.host import Host
from laggard.probes.host.jobs import living_jobs, slurm_setting
from laggard.probes.host.mount_table import read_homes
from laggard.probes.host.virtualization import read_uptime
from laggard.probes.rows import Item

_WANTS: Final = ("/etc/systemd/system", "/run/systemd/generator.late")  # what is enabled, and by SysV's scripts
_ACTIVE: Final = "/run/systemd/units"
"""Holds `invocation:UNIT` as long as the unit is neither inactive nor failed (unit_unlink_state_files of unit.c)."""
_CGROUPS: Final = ("/sys/fs/cgroup/system.slice", "/sys/fs/cgroup/systemd/system.slice")  # v2, v1
_SYSTEMCTL: Final = (
    "/usr/bin/systemctl",
    "show",
    "--property=Id,LoadState,ActiveState,ConditionResult,StateChangeTimestampMonotonic",
)
_SYSTEMCTL_SECONDS: Final = 1.0
RESTART_SECONDS: Final = 60.0
"""The time in which a service that went away may come back: an upgrade stops and starts it."""


def _slurm_by_munge(host: Host) -> bool:
    return living_jobs(host).scheduled and "slurm" not in slurm_setting(host, "AuthType").lower()


def _users_of(source: str, file: str = "") -> Callable[[Host], bool]:
    """Users are looked up there (nsswitch.conf(5)), and it has been set up."""

    def needed(host: Host) -> bool:
        named = re.search(r"^\s*passwd:(.*)", host.text("/etc/nsswitch.conf"), re.MULTILINE)
        sources = named[1].split() if named else []
        return source in sources and "slurm" not in sources and (not file or exists(host, file))

    return needed


def _homes_automounted(host: Host) -> bool:
    folders = "/etc/auto.master.d"
    maps = [host.text("/etc/auto.master"), *(host.text(f"{folders}/{name}") for name in host.names(folders))]
    points = tuple(f"{words[0]}/" for text in maps for line in text.splitlines() if (words := line.split()))
    return any(f"{home}/".startswith(points) for home in ("/home", *read_homes(host)))


def _imex_of_several(host: Host) -> bool:
    """Its list of nodes has others: memory is shared with them by NVLink."""
    lines = host.text("/etc/nvidia-imex/nodes_config.cfg").splitlines()
    return len([line for line in lines if line.strip() and not line.startswith("#")]) > 1


def _slurmd_died(host: Host) -> bool:
    """Whether its own log does not end as it does where somebody stops it. One that dies is started again and again,
    and takes the next job in between."""
    lines = host.text(re.sub("%[nh]", host.node(), slurm_setting(host, "SlurmdLogFile"))).splitlines()
    return bool(lines) and "shutdown complet" not in lines[-1]


_SERVICES: Final[Mapping[str, Callable[[Host], bool] | None]] = {
    "munge": _slurm_by_munge,
    "sssd": _users_of("sss", "/etc/sssd/sssd.conf"),
    "nslcd": _users_of("ldap", "/etc/nslcd.conf"),
    "winbind": _users_of("winbind"),
    "ypbind": _users_of("nis"),
    "autofs": _homes_automounted,
    "slurmd": _slurmd_died,
    "nvidia-imex": _imex_of_several,
    **dict.fromkeys(("kubelet", "containerd", "crio", "docker", "rpc-gssd", "opensm", "opensmd")),
    **dict.fromkeys(("chrony", "chronyd", "ntp", "ntpd", "ntpsec", "systemd-timesyncd", "ptp4l")),
    **dict.fromkeys(("nvidia-persistenced", "nvidia-dcgm", "dcgm", "nvidia-dcgm-exporter")),
}
"""Whether each job fails without it. Without the others jobs are slower, or are not watched, or none is started here:
the scheduler itself sees that. Of the fabric manager another probe tells."""
_STARTS_JOBS: Final = ("kubelet", "containerd", "crio")
"""Where one of these has failed, no job can start here."""


def read_services(host: Host, asked: Collection[str]) -> Iterator[Item]:
    """Those that are enabled, and those that a site's line names. Raises NotFound where systemd does not run."""
    active, cgroups = host.names(_ACTIVE), [name for folder in _CGROUPS for name in host.names(folder)]
    if not active and not cgroups:
        raise NotFound("neither systemd's units nor their cgroups are shown here")
    enabled = enabled_units(host)
    names = {name: name for name in _SERVICES if f"{name}.service" in enabled}
    names |= {name.removesuffix(".service"): name for name in asked}
    running = {name for name in names if {f"invocation:{name}.service", f"{name}.service"} & {*active, *cgroups}}
    states = _states(host, sorted({*names} - running)) if running != {*names} else {}
    for name, as_asked in names.items():
        state = states.get(f"{name}.service", {})
        there = name in running or state.get("ActiveState", "failed") not in ("failed", "inactive")
        excused = state.get("ConditionResult") == "no" or state.get("LoadState", "loaded") != "loaded"
        wanted = int(f"{name}.service" in enabled and not excused)
        failed = not there and state.get("ActiveState") == "failed"
        jobs_need = _SERVICES.get(name)
        needs = (jobs_need and jobs_need(host)) or (failed and name in _STARTS_JOBS)
        needed = wanted and not there and needs and not _has_just_changed(host, state)
        severity = Severity.CRITICAL if needed else Severity.WARNING
        yield Item(as_asked, int(there), wanted, severity, says="has failed" if failed else "")


def _has_just_changed(host: Host, state: Mapping[str, str]) -> bool:
    microseconds, uptime = state.get("StateChangeTimestampMonotonic", ""), or_none(read_uptime, host)
    return microseconds.isdecimal() and uptime is not None and uptime - int(microseconds) / 1e6 < RESTART_SECONDS


def enabled_units(host: Host) -> Mapping[str, str]:
    """The units that start at boot, each with the path of its link."""
    folders = [f"{top}/{name}" for top in _WANTS for name in host.names(top) if name.endswith((".wants", ".requires"))]
    return {name: f"{folder}/{name}" for folder in folders for name in host.names(folder)}


def _states(host: Host, names: Collection[str]) -> Mapping[str, Mapping[str, str]]:
    """What systemd says of the units, by their names: why one does not run, as that its own conditions forbid it. None
    where it does not answer: then its files tell."""
    command = [*_SYSTEMCTL, *(f"{name}.service" for name in names)]
    end = or_none(host.run_program, "systemctl", command, "", _SYSTEMCTL_SECONDS)
    blocks = (end.output if end else "").split("\n\n")
    states = [dict(line.partition("=")[::2] for line in block.splitlines()) for block in blocks]
    return {state.get("Id", ""): state for state in states}
