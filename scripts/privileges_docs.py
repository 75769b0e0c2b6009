"""Writes docs/privileges.md from the units, the chart's pods and deploy/access.yaml.

.venv/bin/python scripts/privileges_docs.py > docs/privileges.md
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from support.chart import rendered

REPOSITORY = Path(__file__).resolve().parents[1]
UNITS = REPOSITORY / "deploy" / "systemd" / "system"
NONE = "none"

HEAD = (Path(__file__).parent / "heads" / "privileges.md").read_text(encoding="utf-8")


class Unit(NamedTuple):
    """A systemd unit: its name, and each key's values in the order in which they stand."""

    name: str
    values: dict[str, list[str]]

    def last(self, key: str, missing: str = NONE) -> str:
        return (self.values.get(key) or [missing])[-1] or NONE

    def has(self, key: str) -> bool:
        return self.last(key, "no") not in ("no", NONE)


def unit(path: Path) -> Unit:
    values: dict[str, list[str]] = {}
    for key, value in re.findall(r"^(\w+)=(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE):
        values.setdefault(key, []).append(value)
    return Unit(path.name, values)


def daemons() -> dict[str, dict[str, dict[str, str]]]:
    """For each daemon what it reads, writes and connects to, with what for."""
    found: dict[str, dict[str, dict[str, str]]] = yaml.safe_load((REPOSITORY / "deploy/access.yaml").read_text())
    return found


def page() -> str:
    units = [unit(path) for path in sorted(UNITS.glob("*.service"))]
    parts = [HEAD, "## systemd\n", *_table(("", *(f"`{it.name}`" for it in units)), _unit_rows(units))]
    parts += [
        "\n## Kubernetes\n",
        *_table(("container", "user", "capabilities", "of its host", "writes"), _containers()),
    ]
    parts += ["\n## What they open\n", *_table(("daemon", "", "path", "for"), _accesses())]
    return "\n".join(parts) + "\n"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    cells = list(head)
    yield f"| {' | '.join(cells)} |"
    yield "|" + "---|" * len(cells)
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _unit_rows(units: list[Unit]) -> Iterator[list[str]]:
    for title, of_unit in (
        ("user", lambda it: it.last("User", "root")),
        (
            "capabilities",
            lambda it: (
                it.last("AmbientCapabilities", NONE if it.has("User") else "all").replace(" ", ", ").replace("CAP_", "")
            ),
        ),
        ("may gain more", lambda it: "no" if it.has("NoNewPrivileges") else "yes"),
        ("network", _network),
        ("writes", _written),
        ("home directories", lambda it: {"yes": "hidden"}.get(it.last("ProtectHome"), it.last("ProtectHome"))),
        ("other processes", lambda it: "hidden" if it.last("ProtectProc") == "invisible" else "seen"),
        ("devices", _devices),
        ("system calls", _calls),
        ("namespaces, set-uid files, real time", lambda it: "refused" if _is_closed(it) else "allowed"),
        ("memory, CPU, tasks", _bounds),
    ):
        yield [title, *map(of_unit, units)]


def _network(it: Unit) -> str:
    if it.has("PrivateNetwork"):
        return "none; Unix sockets"
    return it.last("RestrictAddressFamilies", "all").replace(" ", ", ")


def _written(it: Unit) -> str:
    folders = [f"/var/lib/{name}" for name in it.values.get("StateDirectory", [])]
    folders += [f"/run/{name}" for name in it.values.get("RuntimeDirectory", [])]
    folders += [folder for each in it.values.get("ReadWritePaths", []) for folder in each.split()]
    folders += ["a /tmp of its own"] * it.has("PrivateTmp")
    return ", ".join(folders) if it.last("ProtectSystem") == "strict" else "what its user may"


def _devices(it: Unit) -> str:
    if it.has("PrivateDevices"):
        return "none"
    allowed = [each.split()[0].removeprefix("char-") for each in it.values.get("DeviceAllow", [])]
    return ", ".join(allowed) if it.last("DevicePolicy") == "closed" else "all"


def _calls(it: Unit) -> str:
    words = [word for each in it.values.get("SystemCallFilter", []) for word in _signed(each)]
    return ", ".join(words) or "all"


def _signed(line: str) -> Iterator[str]:
    for word in line.removeprefix("~").split():
        yield f"not {word}" if line.startswith("~") else word


def _is_closed(it: Unit) -> bool:
    return all(it.has(key) for key in ("RestrictNamespaces", "RestrictSUIDSGID", "RestrictRealtime"))


def _bounds(it: Unit) -> str:
    return ", ".join(it.last(key, "no bound") for key in ("MemoryMax", "CPUQuota", "TasksMax"))


def _containers() -> Iterator[list[str]]:
    for item in rendered():
        if item["kind"] in ("DaemonSet", "Deployment"):
            pod = item["spec"]["template"]["spec"]
            for container in (*pod.get("initContainers", ()), *pod["containers"]):
                yield _container(item["metadata"]["name"], pod, container)


def _container(pod_name: str, pod: dict[str, Any], container: dict[str, Any]) -> list[str]:
    own = {**pod.get("securityContext", {}), **container.get("securityContext", {})}
    volumes = {each["name"]: each for each in pod.get("volumes", ())}
    mounts = container.get("volumeMounts", ())
    hosts = [word for word in ("hostNetwork", "hostPID", "hostIPC") if pod.get(word)]
    hosts += [_host_path(volumes, mount) for mount in mounts if "hostPath" in volumes[mount["name"]]]
    writes = [f"`{mount['mountPath']}`" for mount in mounts if not mount.get("readOnly")]
    added = own["capabilities"].get("add", [])
    assert own["readOnlyRootFilesystem"] and own["capabilities"]["drop"] == ["ALL"]
    return [
        f"`{pod_name}`: {container['name']}",
        str(own["runAsUser"]),
        ", ".join(added) or NONE,
        ", ".join(hosts) or NONE,
        ", ".join(writes) or NONE,
    ]


def _host_path(volumes: dict[str, Any], mount: dict[str, Any]) -> str:
    path = volumes[mount["name"]]["hostPath"]["path"]
    return f"`{path}`{' (read-only)' if mount.get('readOnly') else ''}"


def _accesses() -> Iterator[list[str]]:
    for daemon, kinds in daemons().items():
        for kind, paths in kinds.items():
            for path, reason in paths.items():
                yield [daemon, kind, path if " " in path else f"`{path}`", reason]


if __name__ == "__main__":
    print(page(), end="")
