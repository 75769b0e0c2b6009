"""The files in which a process's cgroups count, in the unified hierarchy and in those of version 1."""

from __future__ import annotations


def cgroup_files(lines: str, controller: str, name: str, name_of_version_1: str, root: str) -> list[str]:
    """The files that may have a controller's counts. `lines`: of /proc/PID/cgroup; `root`: /sys/fs/cgroup. A path
    outside of our own cgroup namespace is left out."""
    found: list[str] = []
    for line in lines.splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if ".." in path.split("/"):
            continue
        if controller in controllers.split(","):
            found.append(f"{root}/{controller}{path}/{name_of_version_1}")
        elif hierarchy == "0":
            found += [f"{root}{path}/{name}", f"{root}/unified{path}/{name}"]
    return found
