"""A real Prometheus that scrapes what a test says, and what it knows."""

import contextlib
import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from support.engines import prometheus_server
from support.waiting import wait_for

SECONDS = 120.0

Asked = Callable[[str], Any]
"""Returns the data of an answer of Prometheus' API; to be called with a path after /api/v1/."""


@contextlib.contextmanager
def prometheus(folder: Path, jobs: list[Any]) -> Iterator[Asked]:
    """A real one that scrapes `jobs`; what it gives asks its API."""
    with prometheus_server(folder, {"scrape_configs": jobs}) as url:

        def asked(path: str) -> Any:
            with urllib.request.urlopen(f"{url}/api/v1/{path}", timeout=SECONDS) as answer:
                return json.load(answer)["data"]

        yield asked


def value_of(asked: Asked, query: str) -> float:
    """The first sample's value, once there is one."""
    result = wait_for(lambda: asked(f"query?query={quote(query)}")["result"], lambda: query)
    return float(result[0]["value"][1])
