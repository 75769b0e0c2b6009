"""The interface of a probe: a function from a Host and its thresholds to findings and facts.

A probe yields findings and facts, and returns. It raises NotApplicable where what it judges is provably absent, and
Unknown where it cannot judge; what it yielded before still counts. Where it cannot judge a part it yields Unreadable,
and goes on. The runner handles deadlines, crashes and timing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta

from laggard.catalogue.findings import finding as finding  # probes take it from here
from laggard.model import Finding, Severity
from laggard.probes.tables import rules as rules
from laggard.probes.tables import section as section

if TYPE_CHECKING:
    from laggard.probes.errors import Unreadable
    from laggard.probes.host.counter_history import SaveCounters
    from laggard.probes.host.host import Host
    from laggard.probes.nvml.model import Hang


class Fact(msgspec.Struct, frozen=True):
    """A value that was measured or read, and is neither right nor wrong. It goes into `facts` of the report."""

    name: str
    value: Any


def facts(**values: Any) -> Iterator[Fact]:
    """A fact for each of `values` that is not empty."""
    return (Fact(name, value) for name, value in values.items() if value)


NotNegative = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]
Ratio = Annotated[float, Meta(ge=0, le=1)]
"""A share of a whole, from 0 to 1: 0.97 for 97 %."""


class Thresholds(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of a probe's settings, which a profile may change: `thresholds: {PROBE: {...}}`."""


class ProbeGroup(NamedTuple):
    """Probes that run one after the other in one process and share their Host's answers: to start NVML costs more than
    to read all its values. The deadline is for the whole group."""

    name: str
    deadline_seconds: float
    waits_alike: bool = True
    """Whether what keeps one of them waiting would keep each: while one is stuck in the kernel, none starts again."""


class Probe(NamedTuple):
    """A probe's entry, at the end of the probe's file. The registry lists it."""

    name: str
    check: Callable[[Host, Any], Iterator[Finding | Fact | SaveCounters | Unreadable]]
    thresholds: Thresholds
    deadline_seconds: float = 2.0
    """A passive probe takes milliseconds. After two seconds the machine swaps, or the kernel does not answer."""

    group: ProbeGroup | None = None

    needs: Callable[[Host, Any], object] | None = None
    """Raises NotApplicable as `check` does where there is nothing to judge, so that no process is started for it. It
    runs in the process that answers: it reads root's own settings, or what the kernel holds in memory, and never
    waits."""

    on_hang: Callable[[Hang], Finding | None] | None = None
    """Makes the finding where the group's process hangs in a call that it has announced (see host/watchdog.py), or is
    still in one at its deadline; None where the call may take that long."""


def matches_any(name: str, patterns: Iterable[str]) -> bool:
    """Whether the name of a device or a path matches a pattern, as thresholds have them."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def say(
    table: str,
    kind: str,
    device: str,
    evidence: Mapping[str, object],
    severity: Severity | None = None,
    /,
    **named: object,
) -> Finding:
    """The finding of the section `kind` of rules/TABLE.ini, in its words, with what is `named` in them."""
    return section(table, kind)._replace(device=device).found(evidence, severity, **named)


GPU: Final = ProbeGroup("gpu", 29.5)
"""Probes that ask NVML, which is started and read once. Eight GPUs without persistence mode take up to 24 s to start;
profiles and hangs end it earlier."""

KERNEL: Final = ProbeGroup("kernel", 2.5, waits_alike=False)
"""Probes that read what the kernel holds in memory, and ask no device and no other process: none of them waits. A
process for each would cost several times what they do. Last come those that look at local file systems, whose disk may
be dead, for up to half a second: the answers of the others have come by then."""

PCI: Final = ProbeGroup("pci", 2.0)
"""Probes that ask the devices' configuration space. Where a device keeps one of them waiting, it would keep each."""

RDMA: Final = ProbeGroup("rdma", 4.0)
"""Probes that ask the RDMA adapters, by sysfs and ioctl: the driver asks the firmware for much of it, and one adapter
whose firmware does not answer keeps each of them waiting."""

ACTIVE: Final = ProbeGroup("active", 240.0)
"""Probes that load the GPUs. torch is imported once, perhaps from a slow file system; sixteen GPUs are started, and
each takes some eight seconds."""
ACTIVE_PREFIX: Final = "active_"
"""How their names begin: by that a daemon knows them in a profile, which is the gate's, too."""
