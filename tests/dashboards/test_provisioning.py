"""Grafana reads its boards from files: docs/dashboards.md installs them where deploy/grafana/provisioning looks."""

import subprocess
from pathlib import Path

import yaml
from support.paths import REPOSITORY

DOCUMENT = REPOSITORY / "docs" / "dashboards.md"
PROVISIONING = "etc/grafana/provisioning/dashboards"
"""Where Grafana's packages look for providers."""


def test_the_documented_lines_put_the_boards_where_grafana_looks(tmp_path: Path) -> None:
    lines = [line.strip() for line in DOCUMENT.read_text().splitlines() if line.startswith("    install ")]
    assert lines, "the document has the lines"
    for line in lines:
        assert " -t /" in line, line
        subprocess.run(line.replace(" -t /", f" -t {tmp_path}/"), shell=True, check=True, cwd=REPOSITORY, timeout=300)
    providers = [
        provider
        for path in (tmp_path / PROVISIONING).glob("*.yml")
        for provider in yaml.safe_load(path.read_text())["providers"]
    ]
    assert [provider["type"] for provider in providers] == ["file"]
    for provider in providers:
        found = sorted(path.name for path in (tmp_path / provider["options"]["path"].strip("/")).iterdir())
        assert found == ["laggard-fleet.json", "laggard-job.json", "laggard-node.json"]
