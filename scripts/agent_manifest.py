"""Writes deploy/kubernetes/agent.yaml: what the Helm chart makes of the agent with its defaults, for who has no Helm.

.venv/bin/python scripts/agent_manifest.py

Run it after each change of the chart; a test says where that was forgotten.
"""

from __future__ import annotations

from pathlib import Path

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
MANIFEST = DEPLOY / "kubernetes" / "agent.yaml"
HEAD = "# Made by scripts/agent_manifest.py from the chart deploy/helm/laggard; a test keeps it current.\n"


def made() -> str:
    import helm_python as helm

    with helm.Chart.load(DEPLOY / "helm" / "laggard") as chart:
        texts = chart.render(name="laggard", namespace="laggard")
    agent, configs = (texts[f"laggard/templates/{name}.yaml"] for name in ("agent", "config"))
    config, _, _ = configs.partition("\n---\n")  # the agent's is the first
    lines = f"{agent.rstrip()}\n---\n{config}\n".splitlines(keepends=True)
    return HEAD + "".join(line for line in lines if "app.kubernetes.io/managed-by" not in line)


if __name__ == "__main__":
    MANIFEST.write_text(made())
