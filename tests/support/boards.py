"""Grafana's boards, as deploy/grafana has them."""

from __future__ import annotations

import json
from typing import Any, Final

from support.paths import REPOSITORY

Board = dict[str, Any]

FILES: Final = sorted((REPOSITORY / "deploy" / "grafana" / "dashboards").glob("*.json"))
BOARDS: Final[list[Board]] = [json.loads(file.read_text()) for file in FILES]
