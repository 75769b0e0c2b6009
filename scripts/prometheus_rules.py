"""Writes the rules and alerts of deploy/prometheus where the Prometheus operator and Helm take them from.

.venv/bin/python scripts/prometheus_rules.py

Run it after each change of rules.yml or alerts.yml; a test says where that was forgotten.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

DEPLOY = Path(__file__).parents[1] / "deploy"
NAMES = ("rules", "alerts")
"""Two objects, since a group's name stands in one only once: both files have a group laggard-nodes."""

OBJECTS = "kubernetes/components/prometheus-rule/prometheus-rules.yaml"
CHART = "helm/laggard/files"

HEAD = (
    "# Made by scripts/prometheus_rules.py from deploy/prometheus/rules.yml and alerts.yml; a test keeps it current.\n"
)
OBJECT = """\
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: laggard-{name}
  namespace: laggard
  labels:
    app.kubernetes.io/part-of: laggard
spec:
"""


def made(deploy: Path = DEPLOY) -> dict[str, str]:
    """What is to stand in each file, by its path below deploy/."""
    texts = {name: (deploy / "prometheus" / f"{name}.yml").read_text() for name in NAMES}
    copies = {f"{CHART}/{name}.yml": text for name, text in texts.items()}
    objects = (OBJECT.format(name=name) + textwrap.indent(_groups(text), "  ") for name, text in texts.items())
    return {OBJECTS: HEAD + "---\n".join(objects), **copies}


def _groups(text: str) -> str:
    """A rule file from its `groups` on, comments included."""
    _, found, groups = text.partition("\ngroups:\n")
    if not found:
        sys.exit("a file of rules has a line `groups:`")
    return f"groups:\n{groups}"


if __name__ == "__main__":
    for path, content in made().items():
        (DEPLOY / path).parent.mkdir(parents=True, exist_ok=True)
        (DEPLOY / path).write_text(content)
