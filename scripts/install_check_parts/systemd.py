"""The install by pip and systemd, from the first command of docs/install.md to the last; between, what docs/operate.md
has for later days: backup, restore, and an upgrade by a link."""

from __future__ import annotations

import json
import sys

from install_check_parts.site import LAGGARD, Site, commands

PACKAGES = ("sqlite3",)
BACKUP, UPGRADE = "Backup and restore", "Upgrade, and back"
AGENT, COLLECTOR, AWAY = "Every node: the agent", "One machine: the collector", "Away again"


def check_systemd(site: Site) -> None:
    before = site.traces()
    site.follow(AGENT)
    first_answers_of_agent(site)
    site.follow(COLLECTOR)
    first_answer_of_collector(site)
    site.expect_calm_logs()
    _backup_and_restore(site)
    _upgrade(site)
    units = "laggard-agent laggard-collector laggard-reader laggard-reader.socket"
    site.show(f"systemctl is-active {units} | sort | uniq -c", "4 active")
    site.follow(AWAY)
    if left := [path for path in site.traces() if path not in before]:
        sys.exit(f"install-check: what {AWAY!r} leaves: {left}")


def _backup_and_restore(site: Site) -> None:
    """The incidents that were there are there again, and the collector goes on."""
    page = site.repository / "docs" / "operate.md"
    root = site.root
    root.run("mkdir /backup")
    root.wait_for(f"{LAGGARD} incidents --database /var/lib/laggard/incidents.sqlite --format json || true", '"id":')
    known = _ids(site, "/var/lib/laggard/incidents.sqlite")
    for number in (0, 1):
        for line in commands(page, BACKUP)[number].splitlines():
            print(f"  $ {line}", flush=True)
            root.run(f"umask 077; {line} || [ $? -eq 1 ]")  # an incident is open
        root.run("mv /backup/incidents.sqlite /backup/kept; test $(stat -c %a /backup/kept) = 600")
    root.run("mv /backup/kept /backup/incidents.sqlite")
    site.follow(BACKUP, 2, page)
    if (restored := _ids(site, "/var/lib/laggard/incidents.sqlite")) < known:
        sys.exit(f"install-check: restored: {restored}, known before: {known}")
    site.show(
        "curl -sf localhost:19401/metrics | grep ^laggard_incidents_history_up", "laggard_incidents_history_up 1.0"
    )
    root.run("rm -r /backup")


def _ids(site: Site, database: str) -> set[str]:
    said = site.root.run(f"{LAGGARD} incidents --database {database} --format json || [ $? -eq 1 ]").stdout
    return {str(it["id"]) for it in json.loads(said)["incidents"]}


def _upgrade(site: Site) -> None:
    """Beside the former environment, whose place a link takes first, as it is on a site that was made so."""
    page = site.repository / "docs" / "operate.md"
    root = site.root
    root.run("mv /opt/laggard /opt/laggard-OLD && ln -s laggard-OLD /opt/laggard")
    started = root.run("systemctl show -p ExecMainPID laggard-agent").stdout
    site.follow(UPGRADE, 0, page)
    if root.run("readlink /opt/laggard").stdout.strip() != "laggard-NEW":
        sys.exit("install-check: the link was not switched")
    if root.run("systemctl show -p ExecMainPID laggard-agent").stdout == started:
        sys.exit("install-check: the upgrade left the old agent running")
    site.show("curl -sf localhost:19400/-/ready", "ready")
    # Back again, as the page says, and then as it was, for what follows.
    units = "laggard-reader laggard-agent laggard-collector"
    root.run(
        f"ln -s laggard-OLD /opt/laggard.next && mv -T /opt/laggard.next /opt/laggard && systemctl restart {units}"
    )
    site.show("curl -sf localhost:19400/-/ready", "ready")
    root.run("rm -r /opt/laggard-NEW && rm /opt/laggard && mv /opt/laggard-OLD /opt/laggard")


def first_answers_of_agent(site: Site) -> None:
    site.show(f"{LAGGARD} healthcheck; [ $? -le 2 ]", "laggard: ")
    site.show("curl -sf localhost:19400/metrics | grep laggard_build_info{", "version=")
    site.show("curl -sf localhost:19400/-/ready", "ready")
    site.show("curl -sf localhost:19400/api/v1/report", '"probes":')


def first_answer_of_collector(site: Site) -> None:
    site.show(f"{LAGGARD} locate || true", "")
    site.train()
    site.wait_for_culprit()
    site.show("stat -c '%U %a %n' /var/lib/laggard/incidents.sqlite", "laggard")
