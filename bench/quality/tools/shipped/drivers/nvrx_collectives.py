"""NVRx's CollectiveAnalyzer, without its language model: the ranks of the table that it ends with."""

from __future__ import annotations

import re
from typing import Any

from nvidia_resiliency_ext.attribution.trace_analyzer.fr_attribution import CollectiveAnalyzer


def answer(request: dict[str, Any]) -> list[dict[str, Any]]:
    asked = {"fr_path": request["folder"], "pattern": request["pattern"], "verbose": False, "health_check": False}
    said = CollectiveAnalyzer({**asked, "llm_analyze": False}).run_sync(asked)
    document = said[0] if isinstance(said, tuple) else said
    ranks = re.findall(r"\d+", str(document["hanging_ranks"]))
    return [{"kind": "hung", "ranks": [int(rank)]} for rank in ranks]
