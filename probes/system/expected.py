"""MOUNT_MISSING, HOST_MEMORY_LOW, JOB_LEFTOVERS, KERNEL_LIMIT_REACHED, CPU_MISSING, SHM_SMALL, MODULE_MISSING,
FILE_MODE_WRONG, SERVICE_DOWN and BOND_DEGRADED: what must be there, and is not, or not as it must be. A row for each
kind of thing: see rows.py."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from laggard.probes.host.host import Host
from laggard.probes.probe import KERNEL, Count, Probe, Thresholds
from laggard.probes.rows import FILES, MODULES, Row, Told, judge
from laggard.probes.system.model import leftovers, own_tables, services
from laggard.probes.system.model.own_tables import READABLE, WRITABLE


class ExpectedThresholds(Thresholds, frozen=True):
    """A site's lines. In `nodes` of a profile or of --expect they are for the nodes that a pattern names."""

    mounts: tuple[str, ...] = ()
    """Mount points that must be there, and be writable; ` ro` behind one: or not."""

    memory_bytes: Count = 0
    """The memory that the node must have; 0: what its firmware counts. 4 % of it may be the kernel's own."""

    processors: Count = 0
    """The processors that must be online; 0: those that the kernel has found."""

    shm_bytes: Count = 1 << 30
    """The least size of /dev/shm on a node with GPUs: NVIDIA's notes on its containers ask for `--shm-size=1g`."""

    modules: tuple[str, ...] = ()
    """Kernel modules that must be loaded."""

    device_files: tuple[str, ...] = ()
    """Paths of device files that must be there: `/dev/gdrdrv`."""

    services: tuple[str, ...] = ()
    """Services of systemd that must run: `munge`."""

    ignore: tuple[str, ...] = ()
    """Patterns of what may be missing, or different: a mount point, `memory`, `processors`, `bond0 *`, a service."""


_ROWS: Final = (
    Row("mounts", own_tables.read_points),
    Row("memory", own_tables.read_memory, unit=1 << 30),
    Row("free", leftovers.read_free, unit=1 << 30),
    Row("leftovers", leftovers.read_leftovers),
    Row("limits", own_tables.read_limits),
    Row("processors", own_tables.read_processors),
    MODULES,
    FILES,
    Row("bond_links", own_tables.read_links),
    Row("services", services.read_services),
    Row("places", own_tables.read_places),
    Row("named_files", own_tables.read_named_files),
    Row("controllers", own_tables.read_controllers),
    Row("resolver", own_tables.read_resolver),
)


def check(host: Host, thresholds: ExpectedThresholds) -> Told:
    t = thresholds
    lines: Mapping[str, Mapping[str, int]] = {
        "mounts": {it.removesuffix(" ro"): READABLE if it.endswith(" ro") else WRITABLE for it in t.mounts},
        "memory": {"memory": t.memory_bytes},
        "processors": {"processors": t.processors},
        "modules": dict.fromkeys(t.modules, 1),
        "device_files": dict.fromkeys(t.device_files, 1),
        "services": dict.fromkeys(t.services, 1),
    }
    for row in (*_ROWS, Row("shm", partial(own_tables.read_shm, least=t.shm_bytes), unit=1 << 30)):
        yield from judge(host, row, lines.get(row.name), t.ignore)


PROBE: Final = Probe("expected", check, ExpectedThresholds(), group=KERNEL)
