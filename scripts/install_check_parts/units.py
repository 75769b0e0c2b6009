"""The units under a real systemd, when something goes wrong: an agent that hangs, a reader that is gone, idle rings
without a token."""

from __future__ import annotations

import json
import sys
from typing import Any

from install_check_parts.site import Site

_DROP_IN = "/run/systemd/system/laggard-agent.service.d"
_RINGS = "/etc/systemd/system/laggard-idle-rings.service"
_NO_READER = "laggard's reader, which may, does not run"


def check_units(site: Site) -> None:
    """To be called while agent, reader and collector run. It leaves them so, and nothing else."""
    _hung_agent_is_started_again(site)
    _without_its_reader_the_agent_says_so(site)
    _idle_rings_without_a_token_are_refused(site)


def _hung_agent_is_started_again(site: Site) -> None:
    root = site.root
    root.run(f"mkdir -p {_DROP_IN} && printf '[Service]\\nWatchdogSec=5\\n' >{_DROP_IN}/watchdog.conf")
    root.run("systemctl daemon-reload && systemctl restart laggard-agent")
    root.run("systemctl kill --kill-who=main --signal=STOP laggard-agent")
    site.show("systemctl show -p NRestarts laggard-agent", "NRestarts=1")
    site.show("curl -sf --max-time 5 localhost:19400/-/healthy", "healthy")
    site.show("journalctl -u laggard-agent -o cat | grep 'Watchdog timeout'", "Watchdog timeout")
    root.run(f"rm -r {_DROP_IN} && systemctl daemon-reload && systemctl restart laggard-agent")


def _without_its_reader_the_agent_says_so(site: Site) -> None:
    if said := _wants(_report(site)):
        sys.exit(f"install-check: with its reader the agent cannot tell: {said}")
    # Processes of root and of the training's user: the agent's report and its reader's unit are all that is between.
    if said := _report(site)["facts"].get("nccl_env", {}).get("not_permitted"):
        sys.exit(f"install-check: with its reader the agent does not see all processes: {said}")
    site.root.run("systemctl stop laggard-reader.socket laggard-reader")  # a start of the agent would start it again
    site.root.wait_for("curl -sf localhost:19400/api/v1/report", _NO_READER)
    said = _wants(_report(site))
    print(f"  without the reader: {said[0][:150]}", flush=True)
    site.root.run("systemctl start laggard-reader.socket laggard-reader && systemctl restart laggard-agent")
    if said := _wants(_report(site)):
        sys.exit(f"install-check: with its reader again the agent cannot tell: {said}")


def _report(site: Site) -> Any:
    """The agent's, after its first round."""
    site.root.wait_for("curl -sf localhost:19400/-/ready || true", "ready\n")
    return json.loads(site.root.run("curl -sf localhost:19400/api/v1/report").stdout)


def _wants(report: Any) -> list[str]:
    """What the report says that it cannot tell for want of the reader: probes that are unknown, and facts."""
    unknown = [f"{probe['name']}: {probe['unknown']}" for probe in report["probes"]]
    facts = [f"{probe}: {fact}" for probe, named in report["facts"].items() for fact in named.values()]
    return [text for text in (*unknown, *facts) if _NO_READER in text]


def _idle_rings_without_a_token_are_refused(site: Site) -> None:
    root = site.root
    root.run(f"install -m 644 deploy/systemd/system/laggard-idle-rings.service {_RINGS}", folder="/source")
    root.run("echo 'collector: http://localhost:19401' >/etc/laggard/idle-rings.yaml")
    root.run("systemctl daemon-reload && systemctl start laggard-idle-rings", check=False)
    site.show("systemctl show -p ActiveState -p ExecMainStatus laggard-idle-rings", "ActiveState=failed")
    state = root.run("systemctl show -p SubState -p ExecMainStatus -p NRestarts laggard-idle-rings").stdout.split()
    if sorted(state) != ["ExecMainStatus=64", "NRestarts=0", "SubState=failed"]:
        sys.exit(f"install-check: idle rings without a token: {state}")
    site.show("journalctl -u laggard-idle-rings -o cat | grep ^laggard:", "token")
    root.run(f"rm {_RINGS} /etc/laggard/idle-rings.yaml && systemctl daemon-reload && systemctl reset-failed")
