"""What one run of the gate is to do, as values. `flags.py` makes them once, from the command line and what it names;
all else reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from laggard.gate.slurm import Slurm
from laggard.gate.time_limit import TimeLimit
from laggard.probes.host.host import Host
from laggard.probes.probe import Probe
from laggard.probes.profiles import Profile

if TYPE_CHECKING:
    from laggard.rings.membership import Membership

REPORT_ONLY: Final = "report-only"
ENFORCE: Final = "enforce"
MODES: Final = (REPORT_ONLY, ENFORCE)
NO_CAP: Final = "none"
"""In place of a collector's URL."""
COLLECTOR_SECONDS: Final = 1.0
"""How long the collector may take to answer a question."""
PATIENCE_SECONDS: Final = 4.0
"""The time that it has where it is busy, or does not take the connection, and nothing that it said before holds: a
client that floods it must not have an unfit node pass for a second's wait."""


class Subject(msgspec.Struct, frozen=True):
    """What is judged, and how strictly."""

    host: Host
    """The machine: this one, or a recorded one."""
    profile: Profile
    probes: tuple[Probe, ...]
    """Those that load nothing, with the profile's thresholds."""
    active_probes: tuple[Probe, ...]
    """Those that load the GPUs. They run last."""
    gpus: frozenset[int] | None
    """The device minors of the only GPUs to judge; None: those of SLURM's job."""
    agent_port: int | None
    """The port of this node's agent, where its last report answers the same question; None: the probes have to run."""


class Gang(msgspec.Struct, frozen=True):
    """Where the nodes of the job meet that measure one another."""

    place: Membership | None
    """None: the only node of SLURM's job, which meets nobody."""
    tokens: tuple[str, ...]
    join_seconds: float


class SlurmSettings(NamedTuple):
    """What the gate may tell SLURM, about which node, and who caps it."""

    mode: str | None
    """What SLURM makes of the exit status, one of MODES; None where a person asks."""
    drain: bool
    resume: bool
    collector: str | None
    """Its URL, or NO_CAP; None: none was named, and nothing is drained or rejected."""
    node: str | None
    """The node's name in SLURM, where a flag gives it."""
    slurmd_node: str
    """The same, as slurmd tells it to what it starts; empty: slurmd did not start the gate."""
    scontrol: str

    @property
    def may_act(self) -> bool:
        """Whether the gate judges for SLURM, or changes anything there."""
        return bool(self.mode or self.drain or self.resume)

    @property
    def is_health_check(self) -> bool:
        """Whether no job is at stake: only a health check resumes nodes."""
        return self.resume


class GateConf(msgspec.Struct, frozen=True):
    """What gate.conf says, for `--check-gate` to compare with SLURM's configuration. None: not known."""

    mode: str | None
    """MODE, whatever it is."""
    flags: tuple[str, ...]
    gate_seconds: int | None
    """How long the scripts give the gate; `gang_seconds`: the gate with a gang."""
    gang_seconds: int | None
    gang_token: str | None
    """The file with the gang's secret."""


class GateSettings(NamedTuple):
    """What one run of `laggard healthcheck` is to do."""

    limit: TimeLimit
    subject: Subject
    gang: Gang | None
    """None: no gang was asked for."""
    slurm: SlurmSettings
    accepted: str
    """The file with what root accepts on this node."""
    kill_switch: str
    is_switched_off: bool
    """Whether the file `kill_switch` is there, or cannot be looked for."""
    checks_setup: bool
    """Whether the gate also checks its own setup."""
    gate_conf: GateConf | None
    """Where the gate checks nothing but its own setup: what that is compared with."""
    explains_drain: bool
    """Whether it is told, in place of the report, what can take the node away."""
    as_json: bool
    verbose: bool

    @property
    def is_disabled(self) -> bool:
        """Whether the gate does nothing: it is switched off, and might act on SLURM."""
        return self.is_switched_off and self.slurm.may_act

    def slurm_node(self, node: str) -> Slurm:
        """What changes this node in SLURM. `node`: the node's name in reports."""
        name = self.slurm.node or self.slurm.slurmd_node or node.partition(".")[0]
        return Slurm(name, self.slurm.scontrol, self.limit.end)
