"""What is asked of a Prometheus, and what is not asked twice."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs

from support.fronts import served_by

from laggard.collector.prometheus.choice import failing_nodes
from laggard.collector.prometheus.client import Prometheus


def test_the_nodes_that_fail_are_asked_for_once_a_moment() -> None:
    """Each job of a look asks for them, at the look's moment."""
    asked: list[str] = []

    def answer(path: str, form: bytes, headers: Any) -> tuple[int, bytes]:
        asked.append(parse_qs(form.decode()).get("time", ["now"])[0])
        finding = {"code": "GPU_LOST", "severity": "critical", "instance": "n0:19400", "device": "gpu0"}
        result = [{"metric": finding, "value": [1.0, "1"]}]
        document = {"status": "success", "data": {"resultType": "vector", "result": result}}
        return 200, json.dumps(document, separators=(",", ":")).encode()  # as Prometheus writes it

    with served_by(answer) as url:
        prometheus = Prometheus(url)
        notes = [failing_nodes(prometheus, "", 5.0, frozenset({name})) for name in ("n0", "n1", "n0")]
        assert [note is not None for note in notes] == [True, False, True] and notes[0] == notes[2]
        assert asked == ["5.000"]
        assert failing_nodes(prometheus, "", 6.0, frozenset({"n0"})) and asked == ["5.000", "6.000"]
        assert failing_nodes(prometheus, "b", 6.0, frozenset({"n0"})) and len(asked) == 3, "of another cluster"
        prometheus.close()
