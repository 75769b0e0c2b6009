"""The Debian package: installed, first answers, upgraded, removed and purged."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from install_check_parts.site import Site
from install_check_parts.systemd import first_answer_of_collector, first_answers_of_agent

GONE = "opt/laggard/lib/python3.*/site-packages/laggard/py.typed"
_UNITS = "laggard-reader.socket laggard-agent laggard-collector"


def check_deb(site: Site) -> None:
    package = the_package(site)
    before = site.traces()
    root = site.root
    root.run(f"dpkg -i {package}")
    root.run("systemd-analyze verify /usr/lib/systemd/system/laggard-*")
    if running := root.run("systemctl list-units --state=active --plain --no-legend 'laggard*'").stdout:
        sys.exit(f"install-check: dpkg started {running}")
    root.run(f"systemctl enable --now {_UNITS}")
    first_answers_of_agent(site)
    first_answer_of_collector(site)
    _upgrade(site, package)
    site.expect_calm_logs()
    root.run("dpkg --remove laggard")
    left = [path for path in site.traces() if path not in before]
    allowed = ("/etc/laggard", "/var/lib/laggard", "/run/laggard")  # configuration, incidents, the jobs' own
    if stale := [path for path in left if not path.startswith(allowed)]:
        sys.exit(f"install-check: what removal leaves: {stale}")
    root.run("dpkg --purge laggard")
    if left := [path for path in site.traces() if path not in before]:
        sys.exit(f"install-check: what purging leaves: {left}")


def the_package(site: Site) -> Path:
    """The one in dist; where there is none, or more, it ends the program."""
    packages = list((site.repository / "dist").glob("laggard_*.deb"))
    if len(packages) != 1:
        sys.exit("install-check: needs one package in dist: make release")
    return packages[0]


def newer_package(package: Path, made: Path) -> None:
    """The same with another version, without one of the files."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        subprocess.run(["dpkg-deb", "-R", package, root], check=True)
        control = root / "DEBIAN" / "control"
        control.write_text(control.read_text().replace("\nVersion: ", "\nVersion: 9"))
        (gone,) = root.glob(GONE)
        gone.unlink()
        words = ["dpkg-deb", "--root-owner-group", "--build", root, made]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def _upgrade(site: Site, package: Path) -> None:
    """To a newer one, while the administrator's settings stay."""
    root = site.root
    root.run("echo 'probe_interval_seconds: 30' >/etc/laggard/agent.yaml")
    started = root.run("systemctl show -p ExecMainPID laggard-agent").stdout
    newer_package(package, root.folder / "newer.deb")
    root.run("dpkg --force-confold -i /newer.deb && rm /newer.deb")
    kept = root.run("cat /etc/laggard/agent.yaml; ls /opt/laggard/lib/python3.*/site-packages/laggard").stdout
    if "probe_interval_seconds: 30" not in kept or "py.typed" in kept:
        sys.exit(f"install-check: after the upgrade: {kept}")
    if root.run("systemctl show -p ExecMainPID laggard-agent").stdout == started:
        sys.exit("install-check: the upgrade left the old agent running")
    site.show("curl -sf localhost:19400/-/ready", "ready")
