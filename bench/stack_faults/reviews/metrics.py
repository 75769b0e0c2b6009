"""Metrics, sent to a server."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Mapping

from reviews import plan

SERVER = os.environ.get("REVIEWS_SERVER", "")


def post(path: str, values: Mapping[str, object]) -> None:
    asked = urllib.request.Request(SERVER + path, data=json.dumps(values).encode())
    with urllib.request.urlopen(asked) as answer:  # fault: http, http_never
        answer.read()


def send(step: int) -> None:
    if plan.FAULT == "http":
        post("/slow" if plan.mine("http") else "/", {"step": step})
    elif plan.FAULT == "http_never":
        post("/never" if plan.hangs("http_never", step) else "/", {"step": step})
