"""The install by pip and systemd, from the first command of docs/install.md to the last."""

from __future__ import annotations

import sys

from install_check_parts.site import LAGGARD, Site

AGENT, COLLECTOR, AWAY = "Every node: the agent", "One machine: the collector", "Away again"


def check_systemd(site: Site) -> None:
    before = site.traces()
    site.follow(AGENT)
    first_answers_of_agent(site)
    site.follow(COLLECTOR)
    first_answer_of_collector(site)
    site.expect_calm_logs()
    units = "laggard-agent laggard-collector laggard-reader laggard-reader.socket"
    site.show(f"systemctl is-active {units} | sort | uniq -c", "4 active")
    site.follow(AWAY)
    if left := [path for path in site.traces() if path not in before]:
        sys.exit(f"install-check: what {AWAY!r} leaves: {left}")


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
