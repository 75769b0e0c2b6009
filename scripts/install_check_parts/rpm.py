"""The RPM, installed by rpm on a fresh Debian, whose Python is the package's: first answers, upgraded, erased."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from rpm_package import build

from install_check_parts.deb import GONE
from install_check_parts.site import Site
from install_check_parts.systemd import first_answer_of_collector, first_answers_of_agent

PACKAGES = ("rpm",)
_UNITS = "laggard-reader.socket laggard-agent laggard-collector"
_DEBIAN = """\
Name: debian
Version: 1
Release: 1
Summary: What rpm finds on RHEL, and Debian has without it
License: None
BuildArch: noarch
Provides: {provides}
%description
%files
"""


def check_rpm(site: Site) -> None:
    package, python = _the_package(site)
    before = site.traces()
    root = site.root
    refused = root.run(f"rpm -i {package}", check=False)
    lines = [line.strip() for line in refused.stderr.splitlines() if "is needed by laggard" in line]
    if not any(line.startswith(f"/usr/bin/python{python} ") for line in lines):
        sys.exit(f"install-check: without its Python: {refused}")
    print(f"  where rpm knows of no Python: {', '.join(lines)}", flush=True)
    root.run(f"rpm -i {_debian(site, python)} && rm /debian.rpm && rpm -i {package}")
    root.run("systemd-analyze verify /usr/lib/systemd/system/laggard-*")
    if running := root.run("systemctl list-units --state=active --plain --no-legend 'laggard*'").stdout:
        sys.exit(f"install-check: rpm started {running}")
    site.show("laggard --version", "laggard ")
    if changed := root.run("rpm -V laggard", check=False).stdout:
        sys.exit(f"install-check: rpm -V: {changed}")
    root.run(f"systemctl enable --now {_UNITS}")
    first_answers_of_agent(site)
    first_answer_of_collector(site)
    _upgrade(site, package, python)
    site.expect_calm_logs()
    root.run("rpm -e laggard")
    left = [path for path in site.traces() if path not in before]
    allowed = (
        "/etc/laggard",
        "/var/lib/laggard",
        "/run/laggard",
    )  # settings that were changed, incidents, the jobs' own
    if stale := [path for path in left if not path.startswith(allowed)]:
        sys.exit(f"install-check: what erasing leaves: {stale}")


def _the_package(site: Site) -> tuple[Path, str]:
    """The one in dist, and its Python, which has to be the fresh Debian's."""
    packages = list((site.repository / "dist").glob("laggard-*.rpm"))
    if len(packages) != 1:
        sys.exit("install-check: needs one RPM in dist: make release, with rpmbuild (Debian's package rpm)")
    python = packages[0].name.partition(".py")[2].rpartition(".")[0].rpartition(".")[0]
    if site.root.run(f"test -x /usr/bin/python{python}", check=False).returncode:
        sys.exit(f"install-check: {packages[0].name} is for Python {python}, which this Debian has not")
    return packages[0], python


def _debian(site: Site, python: str) -> str:
    """A package of what the fresh Debian has, since rpm knows of nothing there."""
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / "debian.spec"
        spec.write_text(_DEBIAN.format(provides=f"/bin/sh shadow-utils /usr/bin/python{python}"))
        words = ["rpmbuild", "-bb", "--quiet", "--define", f"_topdir {folder}", "--define", f"_rpmdir {folder}", spec]
        subprocess.run(words, check=True)
        (made,) = Path(folder).rglob("*.rpm")
        (site.root.folder / "debian.rpm").write_bytes(made.read_bytes())
    return "/debian.rpm"


def _newer(package: Path, python: str, folder: Path) -> Path:
    """The same with another version, without one of the files."""
    tree = folder / "tree"
    tree.mkdir()
    archive = subprocess.run(["rpm2cpio", package], capture_output=True, check=True).stdout
    subprocess.run(["cpio", "-idm", "--quiet"], cwd=tree, input=archive, check=True)
    (gone,) = tree.glob(GONE)
    gone.unlink()
    build(tree, folder, "9.0", python, lambda *words: subprocess.run([str(word) for word in words], check=True) and "")
    (made,) = folder.glob("*.rpm")
    return made


def _upgrade(site: Site, package: Path, python: str) -> None:
    """To a newer one, while the administrator's settings stay."""
    root = site.root
    root.run("echo 'probe_interval_seconds: 30' >/etc/laggard/agent.yaml")
    started = root.run("systemctl show -p ExecMainPID laggard-agent").stdout
    with tempfile.TemporaryDirectory() as folder:
        (root.folder / "newer.rpm").write_bytes(_newer(package, python, Path(folder)).read_bytes())
    root.run("rpm -U /newer.rpm && rm /newer.rpm")
    kept = root.run("cat /etc/laggard/agent.yaml; ls /opt/laggard/lib/python3.*/site-packages/laggard").stdout
    if "probe_interval_seconds: 30" not in kept or "py.typed" in kept:
        sys.exit(f"install-check: after the upgrade: {kept}")
    if root.run("systemctl show -p ExecMainPID laggard-agent").stdout == started:
        sys.exit("install-check: the upgrade left the old agent running")
    if not root.run("ls /opt/laggard/lib/python3.*/site-packages/laggard/__pycache__").stdout:
        sys.exit("install-check: the upgrade left nothing compiled")
    site.show("curl -sf localhost:19400/-/ready", "ready")
