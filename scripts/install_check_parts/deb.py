"""The Debian package: installed, first answers, upgraded, removed and purged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from install_check_parts.site import Site
from install_check_parts.systemd import first_answer_of_collector, first_answers_of_agent

_UNITS = "laggard-reader.socket laggard-agent laggard-collector"


def check_deb(site: Site) -> None:
    packages = list((site.repository / "dist").glob("laggard_*.deb"))
    if len(packages) != 1:
        sys.exit("install-check: needs one package in dist: make release")
    before = site.traces()
    root = site.root
    root.run(f"dpkg -i {packages[0]}")
    root.run("systemd-analyze verify /usr/lib/systemd/system/laggard-*")
    if running := root.run("systemctl list-units --state=active --plain --no-legend 'laggard*'").stdout:
        sys.exit(f"install-check: dpkg started {running}")
    root.run(f"systemctl enable --now {_UNITS}")
    first_answers_of_agent(site)
    first_answer_of_collector(site)
    _upgrade(site, packages[0])
    site.expect_calm_logs()
    root.run("dpkg --remove laggard")
    left = [path for path in site.traces() if path not in before]
    allowed = ("/etc/laggard", "/var/lib/laggard", "/run/laggard")  # configuration, incidents, the jobs' own
    if stale := [path for path in left if not path.startswith(allowed)]:
        sys.exit(f"install-check: what removal leaves: {stale}")
    root.run("dpkg --purge laggard")
    if left := [path for path in site.traces() if path not in before]:
        sys.exit(f"install-check: what purging leaves: {left}")


def _upgrade(site: Site, package: Path) -> None:
    """To the same with another version, without one of the files, while the administrator's settings stay."""
    root = site.root
    root.run("echo 'probe_interval_seconds: 30' >/etc/laggard/agent.yaml")
    started = root.run("systemctl show -p ExecMainPID laggard-agent").stdout
    newer = root.folder / "newer"
    subprocess.run(["dpkg-deb", "-R", package, newer], check=True)
    control = newer / "DEBIAN" / "control"
    control.write_text(control.read_text().replace("\nVersion: ", "\nVersion: 9"))
    (gone,) = newer.glob("opt/laggard/lib/python3.*/site-packages/laggard/py.typed")
    gone.unlink()
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", newer, root.folder / "newer.deb"], check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    root.run("dpkg --force-confold -i /newer.deb && rm -rf /newer /newer.deb")
    kept = root.run("cat /etc/laggard/agent.yaml; ls /opt/laggard/lib/python3.*/site-packages/laggard").stdout
    if "probe_interval_seconds: 30" not in kept or "py.typed" in kept:
        sys.exit(f"install-check: after the upgrade: {kept}")
    if root.run("systemctl show -p ExecMainPID laggard-agent").stdout == started:
        sys.exit("install-check: the upgrade left the old agent running")
    site.show("curl -sf localhost:19400/-/ready", "ready")
