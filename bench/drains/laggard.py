"""laggard's own answer: its real probes, on the machine laid out as a recorded one, with the history of counters that
its earlier looks at the same machine would have left.

A probe that read nothing of what changed gives the answer that it gave on the healthy node, and is not run again:
each path that it reads is noted when it judges the healthy node. bench/tests/test_drains.py compares this with whole
runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from drains.machine import Base, Laid, Machine
from laggard import wire
from laggard.model import Severity
from laggard.probes.choose import choose_probes
from laggard.probes.host.counter_history import CounterSnapshot
from laggard.probes.host.host import Host
from laggard.probes.host.kernel import FACTS_PATH, PFC_PATH, REFUSED_PATH, REPLIES_PATH
from laggard.probes.host.kernel_log import KMSG_PATH
from laggard.probes.nvml.model import NVML_PATH
from laggard.probes.probe import Probe
from laggard.probes.profiles import find_profile
from laggard.probes.runner.state_file import RECORDED_PATH, HistoryFile, HistoryStore
from laggard.probes.runner.worker import Observation, observe

LOOK_SECONDS: Final = 60.0
"""The seconds between two looks of the agent."""
OUTSIDE: Final = frozenset({"machine check", "file system read-only"})
"""No probe of laggard reads machine checks or how a file system is mounted: `laggard diagnose` reads their lines."""
PROFILE: Final = "periodic"
"""The profile of the agent, whose critical findings drain nodes."""
LOOKS: Final = (60.0, 3600.0, 12 * 3600.0, 86400.0)
"""The ages of the agent's earlier looks that are still held, in seconds: it thins them with age."""


class Said(NamedTuple):
    """What a tool says of a machine: `critical` are its reasons to take the node out of service; `cannot`: why it
    cannot judge a part."""

    critical: frozenset[str]
    cannot: tuple[str, ...] = ()


class _NotingHost(Host):
    """Notes each path that was read, with its links followed, relative to the machine's folder."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.noted: set[str] = set()

    def _locate(self, path: str) -> str:
        place = super()._locate(path)
        self.noted.add(os.path.realpath(place))
        self.noted.add(place)
        return place

    def _note(self, path: str) -> None:
        self.noted.add(self.root + path)

    def read_link(self, path: str) -> str:
        self._note(path)
        return super().read_link(path)

    def real_path(self, path: str) -> str:
        self._note(path)
        return super().real_path(path)

    def nvml(self, init_limit_seconds: float) -> Any:
        self._note(NVML_PATH)
        return super().nvml(init_limit_seconds)

    def kernel_log(self) -> str:
        self._note(KMSG_PATH)
        return super().kernel_log()


_ASKED: Final[Mapping[str, tuple[str, ...]]] = {
    "disks": (FACTS_PATH,),
    "clock": (FACTS_PATH,),
    "mounts": (REPLIES_PATH,),
    "roce_pfc": (PFC_PATH, REFUSED_PATH),
}
"""What probes ask the kernel and not a file: the documents of a recording that answer."""


class Laggard:
    """Judges machines of one base. `whole`: runs each probe each time."""

    def __init__(self, base: Base, whole: bool = False) -> None:
        self._base = base
        self._whole = whole
        self.probes: tuple[Probe, ...] = choose_probes(find_profile(PROFILE), (), (), "bench")
        self._read: dict[str, frozenset[str]] = {}
        self._healthy: dict[str, Observation] = {}
        self._learn()

    def _learn(self) -> None:
        machine = Machine(self._base)
        counters = self._counters(machine, self.probes)
        with Laid(machine, _history(machine, [(age, counters) for age in LOOKS])):
            for probe in self.probes:
                host = _NotingHost(str(self._base.root))
                host.counter_history = HistoryStore(host).history(probe.name)
                self._healthy[probe.name] = observe(probe, host)
                asked = {self._base.root.as_posix() + path for path in _ASKED.get(probe.name, ())}
                self._read[probe.name] = frozenset(host.noted | asked)
        self._counting = tuple(probe for probe in self.probes if self._healthy[probe.name].counters is not None)
        self._base_counters = counters

    def judge(self, machine: Machine, earlier: Callable[[float], Machine] | None = None) -> Said:
        """`earlier`: the machine as it was so many seconds ago, where counters have changed."""
        looks = [age for age in LOOKS if age < machine.uptime - 1]
        known = [(age, self._earlier(earlier(age)) if earlier else self._base_counters) for age in looks]
        history = _history(machine, known)
        with Laid(machine, history) as root:
            host = Host(str(root))
            store = HistoryStore(host)
            found, cannot = [], []
            again = self.probes if self._whole or machine.boot else self._touched(Laid(machine), bool(earlier))
            for probe in self.probes:
                if probe in again:
                    host.counter_history = store.history(probe.name)
                    seen = observe(probe, host)
                else:
                    seen = self._healthy[probe.name]
                found += seen.findings
                if seen.verdict.value == "unknown":
                    cannot.append(f"{probe.name}: {seen.reason}")
        critical = frozenset(f"{it.code} {it.device}: {it.summary}" for it in found if it.severity is Severity.CRITICAL)
        return Said(critical, tuple(cannot))

    def _earlier(self, machine: Machine) -> dict[str, dict[str, int]]:
        """The counters that a look at this machine would have saved."""
        again = [probe for probe in self._touched(Laid(machine), False) if probe in self._counting]
        return {**self._base_counters, **(self._counters(machine, again) if again else {})}

    def _touched(self, laid: Laid, counters: bool) -> Sequence[Probe]:
        paths: set[str] = set()
        root = self._base.root.as_posix()
        for path in laid.changed():
            place = f"{root}/{path}"
            for form in (place, os.path.realpath(place)):
                paths |= {form, os.path.dirname(form)}
            # what was read below a folder that is gone is gone as well
        gone = tuple(f"{os.path.realpath(f'{root}/{path}')}/" for path in laid.removed) + tuple(
            f"{root}/{path}/" for path in laid.removed
        )
        return [
            probe
            for probe in self.probes
            if (counters and probe in self._counting)
            or not paths.isdisjoint(self._read[probe.name])
            or (gone and any(read.startswith(gone) for read in self._read[probe.name]))
        ]

    def _counters(self, machine: Machine, probes: Iterable[Probe]) -> dict[str, dict[str, int]]:
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
