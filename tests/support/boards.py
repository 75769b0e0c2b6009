"""Grafana's boards, as deploy/grafana has them."""

import json
from typing import Any, Final

from support.paths import REPOSITORY
from support.synthetic_fleet import NODES

Board = dict[str, Any]

FILES: Final = sorted((REPOSITORY / "deploy" / "grafana" / "dashboards").glob("*.json"))
BOARDS: Final[list[Board]] = [json.loads(file.read_text()) for file in FILES]
PANELS: Final = [(board["uid"], panel) for board in BOARDS for panel in board["panels"] if panel["type"] != "row"]
TARGETS: Final = [(uid, panel, target) for uid, panel in PANELS for target in panel["targets"]]


def chosen(expr: str, cluster: str = ".*", rate_interval: str = "1h") -> str:
    """A query as Grafana sends it, of the job and of the node that a reader chose in the synthetic fleet."""
    values = {
        "job_id": "a",
        "user": "1000",
        "instance": NODES[0],
        "cluster": cluster,
        "__rate_interval": rate_interval,
        "__range": "1h",
    }
    for name, value in values.items():
        expr = expr.replace(f"${name}", value)
    assert "$" not in expr, f"{expr}: a variable that no dashboard has"
    return expr
