"""The Helm chart, rendered by Helm itself."""

from __future__ import annotations

from typing import Any

import yaml

from support.paths import REPOSITORY

NO_HELM = "needs helm-python-sdk: Helm as a library (scripts/setup installs it)"
CHART = REPOSITORY / "deploy" / "helm" / "laggard"


def rendered(values: dict[str, Any] | None = None, namespace: str = "laggard") -> list[dict[str, Any]]:
    """The objects that Helm makes of the chart with these values."""
    import helm_python as helm

    with helm.Chart.load(CHART) as chart:
        texts = chart.render(values or {}, name="laggard", namespace=namespace)
    items = [item for name, text in texts.items() if name.endswith(".yaml") for item in yaml.safe_load_all(text)]
    return [item for item in items if item]
