"""The RPM of a release, for RHEL and its kin: the same tree as the .deb, for one Python that need not be the one that
builds it. rpmbuild makes it, from scripts/rpm/laggard.spec."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import tempfile
from pathlib import Path

from package_tree import ROOT, Run

SPEC = ROOT / "scripts" / "rpm" / "laggard.spec"
OLDEST_LIBC = "2_28"
"""glibc of RHEL 8, on which wheels have to run."""
CONFIGURATION = "/etc/laggard"
OF_THE_SYSTEM = ("/usr/share/bash-completion", "/usr/share/zsh", "/usr/share/man", "/usr/share/doc",
                 "/usr/lib/systemd", "/usr/lib/sysusers.d", "/usr/lib/tmpfiles.d", "/usr/bin")  # fmt: skip
"""The folders whose files alone are the package's; another one's files, and the folders, are other packages' too."""


def for_python(python: str) -> tuple[str, ...]:
    """pip's words for wheels of that Python, which need no newer C library than the oldest one."""
    machine = platform.machine()
    platforms = (f"manylinux_{OLDEST_LIBC}_{machine}", f"manylinux2014_{machine}")
    words = [word for name in platforms for word in ("--platform", name)]
    return (*words, "--python-version", python, "--implementation", "cp", "--only-binary", ":all:")


def missing(there: Path, python: str) -> list[str]:
    """The requirements of what is in the folder of packages that nothing there meets, for that Python: pip chooses by
    the markers of the Python that runs it."""
    from packaging.requirements import Requirement

    found = list(importlib.metadata.distributions(path=[str(there)]))
    names = {_name(each.name) for each in found}
    target = {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
    wanted = [(each.name, Requirement(text)) for each in found for text in each.requires or ()]
    return sorted(
        f"{name}: {it}"
        for name, it in wanted
        if (it.marker is None or it.marker.evaluate(target)) and _name(it.name) not in names
    )


def _name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def listed(root: Path) -> list[str]:
    """The lines of %files for what is in `root`: a folder as a whole where it is laggard's own, else file by file."""
    lines = ["%defattr(-, root, root)", "/opt/laggard", f"%dir {CONFIGURATION}", "%dir /usr/share/doc/laggard"]
    for path in sorted(root.rglob("*")):
        name = f"/{path.relative_to(root)}"
        if name.startswith("/opt/") or (path.is_dir() and not path.is_symlink()):
            continue
        if name.startswith(f"{CONFIGURATION}/"):
            lines.append(f"%config(noreplace) {name}")
        elif name.startswith(OF_THE_SYSTEM):
            lines.append(name)
        else:
            raise ValueError(f"{name} is in no folder that the package knows")
    return lines


def build(root: Path, out: Path, version: str, python: str, run: Run) -> None:
    """Builds the package of what is in `root` into `out`. `python`: such as 3.12."""
    if not re.fullmatch(r"\d+(\.\w+)*", version):
        raise ValueError(f"{version} is no version of an RPM")
    with tempfile.TemporaryDirectory() as temporary:
        files = Path(temporary) / "files"
        files.write_text("\n".join(listed(root)) + "\n")
        macros = {"tree": root, "python": python, "listed": files, "laggard_version": version,
                  "_topdir": f"{temporary}/top", "_rpmdir": f"{temporary}/rpms"}  # fmt: skip
        defined = [word for name, value in macros.items() for word in ("--define", f"{name} {value}")]
        run("rpmbuild", "-bb", "--quiet", "--target", f"{platform.machine()}-linux", *defined, SPEC)
        (package,) = (Path(temporary) / "rpms").rglob("*.rpm")
        (out / package.name).write_bytes(package.read_bytes())
