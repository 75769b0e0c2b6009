"""What one node shows at one moment: its kernel's log, NVML's readings, its files, its mounts. No rule of any tool is
in here: events change it, and every tool reads the same values."""

import copy
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

RDMA: Final = "sys/class/infiniband"
NET: Final = "sys/class/net"
PCI: Final = "sys/bus/pci/devices"
MOUNTS: Final = "proc/self/mounts"
UPTIME: Final = 864000.0
"""The seconds since boot of a node that was not rebooted lately."""


_LEVELS: Final = {
    "watchdog: BUG": 0, "mce: [Hardware Error]": 0, "BUG: ": 1, "general protection": 1, "Oops: ": 1, "RIP: ": 1,
    "XFS ": 1, "EXT4-fs": 2, "md/": 2, "INFO: task": 3, "I/O error": 3, "Buffer I/O": 3, "Memory failure": 3,
    "Memory cgroup": 3,
}  # fmt: skip
"""The level at which the kernel logs lines that begin so; of all others, a warning: 4."""


class LogLine(NamedTuple):
    """A line of the kernel's log. `age`: seconds ago. `earlier_boot`: it is in the journal and not in the kernel's
    buffer."""

    age: float
    text: str
    earlier_boot: bool = False


class Port(NamedTuple):
    """An RDMA port as sysfs shows it."""

    device: str
    ethernet: bool
    netdev: str


class Base:
    """A healthy node, laid out as a recorded machine in the folder `root`. `compute_ports` carry the jobs'
    traffic."""

    def __init__(self, kind: str, root: Path, compute_ports: tuple[str, ...] = ()) -> None:
        self.kind = kind
        self.root = root
        self.compute_ports = compute_ports
        self.nvml: dict[str, Any] = json.loads((root / "laggard/nvml.json").read_text())
        self.facts: dict[str, Any] = json.loads((root / "laggard/facts.json").read_text())
        self.replies: dict[str, Any] = json.loads((root / "laggard/replies.json").read_text())
        self.expected_gpus = len(self.nvml["gpus"])
        self.ports = tuple(sorted(os.listdir(root / RDMA))) if (root / RDMA).is_dir() else ()

    def address_of(self, device: str) -> str:
        """The PCI address of an RDMA device."""
        return os.path.basename(os.path.realpath(self.root / RDMA / device / "device"))

    @property
    def has_switches(self) -> bool:
        return any(gpu.get("fabric") for gpu in self.nvml["gpus"])


class Machine:
    """One node. Events change it; `age` in an event is the seconds since it began."""

    def __init__(self, base: Base) -> None:
        self.base = base
        self.uptime = UPTIME
        self.boot = 0
        self.log: list[LogLine] = []
        self.nvml = copy.deepcopy(base.nvml)
        self.facts = copy.deepcopy(base.facts)
        self.replies = copy.deepcopy(base.replies)
        self.files: dict[str, str] = {}
        self.removed: set[str] = set()
        self.log.append(
            LogLine(UPTIME - 14.9, f"NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  {self.driver}")
        )

    @property
    def driver(self) -> str:
        return str(self.nvml["driver_version"])

    @property
    def gpus(self) -> list[dict[str, Any]]:
        gpus: list[dict[str, Any]] = self.nvml["gpus"]
        return gpus

    def gpu(self, number: int) -> dict[str, Any]:
        return self.gpus[number % len(self.gpus)]

    def unlist(self, number: int) -> None:
        """NVML lists one GPU less, and numbers the others anew."""
        number %= len(self.gpus)
        self.gpus.pop(number)
        for index, one in enumerate(self.gpus):
            one["index"] = index
        for kind in ("p2p_read", "p2p_write"):
            rows = [row for at, row in enumerate(self.nvml[kind]) if at != number]
            self.nvml[kind] = [[value for at, value in enumerate(row) if at != number] for row in rows]

    def bus(self, number: int) -> str:
        """A GPU's address as the driver logs it: 0000:3b:00."""
        return str(self.base.nvml["gpus"][number % self.base.expected_gpus]["bus_id"]).rpartition(".")[0]

    def say(self, age: float, text: str) -> None:
        """Adds a line to the kernel's log. Lines from before the boot are in the journal alone."""
        self.log.append(LogLine(age, text, age >= self.uptime))

    def restart(self, age: float) -> None:
        """The node was rebooted `age` seconds ago: the driver starts, and the kernel's buffer begins anew."""
        self.uptime, self.boot = age, self.boot + 1
        self.log = [line._replace(earlier_boot=True) for line in self.log]
        self.say(max(age - 14.9, 0.5), f"NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  {self.driver}")

    def write(self, path: str, text: str) -> None:
        self.files[path] = text + "\n"

    def remove(self, path: str) -> None:
        self.removed.add(path)

    def read(self, path: str) -> str:
        """A file of the node as it is now; empty where there is none."""
        if any(path == gone or path.startswith(gone + "/") for gone in self.removed):
            return ""
        if path in self.files:
            return self.files[path].strip()
        place = self.base.root / path
        return place.read_text().strip() if place.is_file() else ""

    def add(self, path: str, count: int) -> None:
        """Raises a counter in a file."""
        self.write(path, str(int(self.read(path) or 0) + count))

    def append(self, path: str, *lines: str) -> None:
        self.write(path, "\n".join([*self.read(path).splitlines(), *lines]))

    def sub(self, path: str, pattern: str, new: str) -> None:
        """Replaces what matches in a file's lines."""
        self.write(path, re.sub(pattern, new, self.read(path) + "\n", flags=re.MULTILINE).strip())

    def mount(self, line: str, total: int = 0, free: int = 0) -> None:
        """Mounts a file system of `total` bytes; 0: of one that is not asked for its size."""
        self.append(MOUNTS, f"{line} 0 0")
        if total:
            self.size(line.split()[1], total, free)

    def unmount(self, point: str) -> None:
        self.sub(MOUNTS, rf"^\S+ {point} .*\n", "")
        self.facts["file_systems"].pop(point, None)
        self.replies.pop(point, None)

    def size(self, point: str, total: int, free: int, user: str = "0") -> None:
        """Sets a file system's size in bytes; if it is nearly full, it is of the `user`'s files."""
        one = self.facts["file_systems"].setdefault(
            point, dict.fromkeys(("inodes", "inodes_free", "inodes_available"), 0)
        )
        one.update(total_bytes=total, free_bytes=free, available_bytes=free)
        if free < total / 10:
            used = {"bytes_by_user": {user: total - free}, "complete": True, "for_all": user != "0"}
            self.facts.setdefault("usages", {})[point] = used

    def start(self, pid: int, name: str, state: str, age: float, cgroup: str, uid: int = 1001) -> None:
        """A process that runs since `age` seconds."""
        self.write(f"proc/{pid}/comm", name)
        job = cgroup.partition("/job_")[2].partition("/")[0]
        self.write(f"proc/{pid}/cmdline", f"slurmstepd: [{job}.0]" if name == "slurmstepd" else name)
        word = {"D": "disk sleep", "R": "running", "S": "sleeping", "T": "stopped"}[state]
        ids = "\t".join([str(uid)] * 4)
        self.write(f"proc/{pid}/status", f"Name:\t{name}\nState:\t{state} ({word})\nPid:\t{pid}\nPPid:\t1\nUid:\t{ids}")
        ticks = int(max(self.uptime - age, 0) * 100)
        self.write(
            f"proc/{pid}/stat", f"{pid} ({name}) {state} 1 {pid} {pid} 0 -1 4194560{' 0' * 12} {ticks}{' 0' * 30}"
        )
        self.write(f"proc/{pid}/cgroup", f"0::{cgroup}")
        self.append(f"sys/fs/cgroup{cgroup}/cgroup.procs", str(pid))

    def without_driver(self) -> None:
        """No driver of NVIDIA is loaded, and this boot has not seen one."""
        self.nvml.update(gpus=[], p2p_read=[], p2p_write=[], error="DRIVER_NOT_LOADED")
        self.sub("proc/modules", r"^nvidia.*\n", "")
        names = ("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_peermem")
        gone = ["sys/bus/pci/drivers/nvidia", "proc/driver/nvidia", *(f"sys/module/{name}" for name in names)]
        gone += [f"dev/{name}" for name in os.listdir(self.base.root / "dev") if name.startswith("nvidia")]
        gone += [f"{PCI}/{gpu['bus_id']}/driver" for gpu in self.base.nvml["gpus"]]
        for path in (*gone, "proc/3120", "run/nvidia-fabricmanager/nv-fabricmanager.pid"):
            self.remove(path)
        self.log = [line for line in self.log if line.earlier_boot or "NVRM" not in line.text]

    def set_port(self, device: str, state: str, phys: str, rate: str = "") -> None:
        folder = f"{RDMA}/{device}/ports/1"
        self.write(f"{folder}/state", state)
        self.write(f"{folder}/phys_state", phys)
        if rate:
            self.write(f"{folder}/rate", rate)
        netdev = self.netdev(device)
        if netdev and not state.endswith("INIT"):
            up = state.endswith("ACTIVE")
            self.write(f"{NET}/{netdev}/operstate", "up" if up else "down")
            self.write(f"{NET}/{netdev}/carrier", "1" if up else "0")

    def netdev(self, device: str) -> str:
        folder = self.base.root / RDMA / device / "device/net"
        return next(iter(sorted(os.listdir(folder))), "") if folder.is_dir() else ""

    def ports(self) -> list[Port]:
        found = []
        for device in self.base.ports:
            folder = f"{RDMA}/{device}/ports/1"
            if self.read(f"{folder}/state") and f"{RDMA}/{device}" not in self.removed:
                found.append(Port(device, self.read(f"{folder}/link_layer") == "Ethernet", self.netdev(device)))
        return found

    def kmsg(self) -> str:
        """The kernel's buffer, in the form of /dev/kmsg."""
        kept = [line for line in self.log if line.age <= self.uptime and not line.earlier_boot]
        return "".join(
            f"{next((level for words, level in _LEVELS.items() if line.text.startswith(words)), 4)},"
            f"{number},{max(0, round((self.uptime - line.age) * 1e6))},-;{line.text}\n"
            for number, line in enumerate(sorted(kept, key=lambda line: -line.age))
        )

    def documents(self) -> dict[str, str]:
        """All files that differ from the base's, by path without a leading slash."""
        changed = {"laggard/kmsg": self.kmsg()}
        for path, value, before in (
            ("laggard/nvml.json", self.nvml, self.base.nvml),
            ("laggard/facts.json", self.facts, self.base.facts),
            ("laggard/replies.json", self.replies, self.base.replies),
        ):
            if value != before:
                changed[path] = json.dumps(value)
        if self.uptime != UPTIME:
            changed["proc/uptime"] = f"{self.uptime:.2f} {self.uptime:.2f}\n"
        if self.boot:
            changed["proc/sys/kernel/random/boot_id"] = f"{self.boot:08x}-6d6b-4f0e-9c55-0c6f2f1f7a10\n"
        return {**changed, **self.files}


class Laid:
    """The changes of a machine, laid over its base's folder while the block lasts."""

    def __init__(self, machine: Machine, more: dict[str, str] | None = None) -> None:
        self._root = machine.base.root
        self._documents = {**machine.documents(), **(more or {})}
        self._removed = sorted(machine.removed)
        self._undo: list[Callable[[], object]] = []

    def __enter__(self) -> Path:
        for number, path in enumerate(self._removed):
            place, aside = self._root / path, self._root.parent / f".aside-{self._root.name}-{number}"
            if os.path.lexists(place):
                os.rename(place, aside)
                self._undo.append(lambda place=place, aside=aside: os.rename(aside, place))  # type: ignore[misc]
        for path, text in self._documents.items():
            self._write(self._root / path, text)
        return self._root

    def _write(self, place: Path, text: str) -> None:
        made = [folder for folder in (*reversed(place.parents),) if not folder.exists()]
        if any(os.path.lexists(folder) for folder in made):  # a dangling link: the device was taken away
            return
        before = place.read_bytes() if place.is_file() else None
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        if before is not None:
            self._undo.append(lambda: place.write_bytes(before))
        elif made:
            self._undo.append(lambda: shutil.rmtree(made[0]))
        else:
            self._undo.append(place.unlink)

    def __exit__(self, *_: object) -> None:
        for undo in reversed(self._undo):
            undo()
