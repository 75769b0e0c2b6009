"""deploy/prometheus/prometheus-tls.yml: a real Prometheus with it scrapes agent and collector, which ask for its
certificate; without one it does not."""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.certificates import SECONDS, Files, Start
from support.paths import REPOSITORY
from support.scraping import Asked, prometheus, value_of

SHIPPED = REPOSITORY / "deploy" / "prometheus" / "prometheus-tls.yml"
THEIRS = "/etc/prometheus/laggard/"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("prometheus"), reason="no prometheus here: apt-get install prometheus"),
]


def test_targets_are_up_with_the_certificate_and_down_without(files: Files, start: Start, tmp_path: Path) -> None:
    """With another authority's and with a name that is not listed as well; the collector is its agent's client."""
    config = files.config(
        client_ca_file="ca.pem",
        client_auth_type="RequireAndVerifyClientCert",
        client_allowed_sans="[prometheus.example, collector.example]",
    )
    files.write("prometheus", files.authority.issue_cert("prometheus.example"))
    agent = start("agent", "--web.config.file", config)
    words = ("collector", "--interval", "1", "--target", agent.url, "--web.config.file", config)
    collector = start(*words, environ=files.environment("client"))
    addresses = {"laggard-agent": f"127.0.0.1:{agent.port}", "laggard-collector": f"127.0.0.1:{collector.port}"}
    with prometheus(tmp_path, scrape_configs(files.folder, addresses)) as asked:
        targets = until_scraped(asked)
        for job in addresses:
            assert targets[job] == ("up", ""), targets
            for kind in ("nobody", "stranger", "other", "plain"):
                health, error = targets[f"{job} {kind}"]
                assert health == "down" and error, targets
        assert value_of(asked, 'up{job="laggard-agent"}') == value_of(asked, 'up{job="laggard-collector"}') == 1
        assert value_of(asked, 'up{job="laggard-agent stranger"}') == 0
        assert value_of(asked, 'count(laggard_probe_verdict{job="laggard-agent"})') > 0
        assert value_of(asked, 'laggard_target_up{job="laggard-collector"}') == 1
        assert value_of(asked, 'count({__name__=~"laggard_.*",job!~"laggard-(agent|collector)"} or vector(0))') == 1


def scrape_configs(folder: Path, addresses: dict[str, str]) -> list[Any]:
    """What is shipped, with the paths and addresses of the test and a short interval, and each job again with what is
    wrong."""
    shipped = yaml.safe_load(SHIPPED.read_text().replace(THEIRS, f"{folder}/"))["scrape_configs"]
    assert [each["job_name"] for each in shipped] == list(addresses)
    made = []
    for each in shipped:
        name = each["job_name"]
        each["scrape_interval"] = "1s"
        for key, value in ((key, each[key]) for key in ("file_sd_configs", "static_configs") if key in each):
            if key == "static_configs":
                value[0]["targets"] = [addresses[name]]
            else:
                (folder / "agents").mkdir()
                (folder / "agents" / "all.yml").write_text(yaml.safe_dump([{"targets": [addresses[name]]}]))
        made += [each, without_certificate(each, "nobody"), plain(each)]
        made += [with_certificate(each, name) for name in ("stranger", "other")]
    return made


def without_certificate(job: dict[str, Any], name: str) -> dict[str, Any]:
    return {**job, "job_name": f"{job['job_name']} {name}", "tls_config": {"ca_file": job["tls_config"]["ca_file"]}}


def with_certificate(job: dict[str, Any], name: str) -> dict[str, Any]:
    folder = Path(job["tls_config"]["ca_file"]).parent
    tls = {**job["tls_config"], "cert_file": f"{folder}/{name}.pem", "key_file": f"{folder}/{name}.key"}
    return {**job, "job_name": f"{job['job_name']} {name}", "tls_config": tls}


def plain(job: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in job.items() if key != "tls_config"}
    return {**kept, "job_name": f"{job['job_name']} plain", "scheme": "http"}


def until_scraped(asked: Asked) -> dict[str, tuple[str, str]]:
    """The health and the last error of each job's target, once each was scraped and both shipped jobs are up."""
    deadline = time.monotonic() + SECONDS
    found: dict[str, tuple[str, str]] = {}
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            active = asked("targets?state=active")["activeTargets"]
            found = {each["scrapePool"]: (each["health"], each["lastError"]) for each in active}
            up = sum(health == "up" for health, _ in found.values())
            if len(found) == 10 and up == 2 and all(health != "unknown" for health, _ in found.values()):
                return found
        time.sleep(0.2)
    raise AssertionError(found)
