"""laggard's own answer: its real probes, on the machine laid out as a recorded one, with the history of counters that
its earlier looks at the same machine would have left."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from drains.machine import Base, Laid, Machine
from laggard import wire
from laggard.model import Severity
from laggard.probes.choose import choose_probes
from laggard.probes.host.counter_history import CounterSnapshot
from laggard.probes.host.host import Host
from laggard.probes.probe import Probe
from laggard.probes.profiles import find_profile
from laggard.probes.runner.state_file import RECORDED_PATH, HistoryFile, HistoryStore
from laggard.probes.runner.worker import observe

LOOK_SECONDS: Final = 60.0
"""The seconds between two looks of the agent."""
PROFILES: Final = ("periodic", "prolog")
"""The profile of the agent, whose critical findings drain nodes, and that of the gate where a job is about to begin:
where SLURM's variables of one are there."""
LOOKS: Final = (60.0, 3600.0, 12 * 3600.0, 86400.0)
"""The ages of the agent's earlier looks that are still held, in seconds: it thins them with age."""


class Said(NamedTuple):
    """What laggard says of a machine: `critical` are its reasons to take the node out of service; `told`: those and its
    warnings; `cannot`: why it cannot judge a part."""

    critical: frozenset[str]
    told: frozenset[str]
    cannot: tuple[str, ...] = ()


class Laggard:
    """Judges machines of one base."""

    def __init__(self, base: Base) -> None:
        chosen = [choose_probes(find_profile(profile), (), (), "bench") for profile in PROFILES]
        self.probes: tuple[Probe, ...] = chosen[0]
        self._of_a_job: tuple[Probe, ...] = chosen[1]
        self._base_counters = _counters(Machine(base), self.probes)
        self._counting = tuple(probe for probe in self.probes if probe.name in self._base_counters)

    def judge(self, machine: Machine, earlier: Callable[[float], Machine] | None = None) -> Said:
        """`earlier`: the machine as it was so many seconds ago, where counters have changed."""
        looks = [age for age in LOOKS if age < machine.uptime - 1]
        known = [(age, _counters(earlier(age), self._counting) if earlier else self._base_counters) for age in looks]
        with Laid(machine, _history(machine, known)) as root:
            host = Host(str(root))
            store = HistoryStore(host)
            seen = []
            for probe in self._of_a_job if machine.facts["environ"] else self.probes:
                host.counter_history = store.history(probe.name)
                seen.append((probe.name, observe(probe, host)))
        critical, warned = (
            frozenset(
                f"{it.code} {it.device}: {it.summary}"
                for _, one in seen
                for it in one.findings
                if it.severity is severity
            )
            for severity in (Severity.CRITICAL, Severity.WARNING)
        )
        cannot = tuple(f"{name}: {one.reason}" for name, one in seen if one.verdict.value == "unknown")
        return Said(critical, critical | warned, cannot)


def _counters(machine: Machine, probes: Iterable[Probe]) -> dict[str, dict[str, int]]:
    """The counters that a look at this machine would have saved."""
    with Laid(machine) as root:
        host = Host(str(root))
        seen = {probe.name: observe(probe, host).counters for probe in probes}
    return {name: counters for name, counters in seen.items() if counters}


def _history(machine: Machine, looks: Iterable[tuple[float, Mapping[str, Mapping[str, int]]]]) -> dict[str, str]:
    """The file of earlier looks of this boot."""
    probes: dict[str, list[CounterSnapshot]] = {}
    for age, counters in sorted(looks, key=lambda look: -look[0]):
        for name, values in counters.items():
            probes.setdefault(name, []).append(CounterSnapshot(machine.uptime - age, dict(values)))
    boot_id = machine.read("proc/sys/kernel/random/boot_id")
    if machine.boot:
        boot_id = machine.documents()["proc/sys/kernel/random/boot_id"].strip()
    document = HistoryFile(boot_id, {name: tuple(snapshots) for name, snapshots in probes.items()})
    return {RECORDED_PATH.lstrip("/"): wire.encode(document).decode()} if probes else {}
