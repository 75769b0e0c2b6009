"""The Helm chart, rendered by Helm itself."""

import re
import shutil
from pathlib import Path
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


def for_any_version(chart: Path, copy: Path) -> Path:
    """The chart without the version of Kubernetes that it wants: an API server that was built from source may say that
    it is 0.0.0."""
    meta = shutil.copytree(chart, copy) / "Chart.yaml"
    meta.write_text(re.sub(r"(?m)^kubeVersion:.*\n", "", meta.read_text()))
    return copy
