"""Questions that nobody would ask, to a daemon's HTTP API: hypothesis makes them, and makes those that fail smaller."""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Sequence
from urllib.parse import quote, urlencode

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS")
NAMES = (
    "job", "since", "limit", "before", "open", "fresh", "rank", "ranks", "owner", "node", "nodes", "hours", "start",
    "stop", "order", "columns", "step", "last", "format"
)  # fmt: skip
"""The parameters that either daemon knows, and some that neither does."""
numbers = st.one_of(
    st.integers().map(str), st.floats().map(str), st.sampled_from(["nan", "-inf", "1e999", "0x1", "1_0", "٣"])
)
values = st.one_of(
    st.text(max_size=60),
    numbers,
    st.lists(numbers, max_size=6).map(",".join),
    st.sampled_from(["0:job-1", "job-1", ":"]),
)
headers = st.dictionaries(
    st.sampled_from(["Accept", "Accept-Encoding", "Host", "Range", "If-None-Match", "Content-Type", "Authorization"]),
    st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=40),
    max_size=3,
)


def expect_no_defect(url: str, paths: Sequence[str], examples: int) -> None:
    """Asks so many questions of each kind. Every answer is one, and none is a defect of ours: no status from 500 on but
    503, and no traceback in what it says."""

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(
        st.sampled_from(METHODS),
        st.one_of(st.sampled_from(paths), st.text(max_size=40).map(lambda text: f"/{quote(text)}")),
        st.lists(st.tuples(st.sampled_from(NAMES), values), max_size=4),
        headers,
        st.binary(max_size=200),
    )
    def ask(method: str, path: str, asked: list[tuple[str, str]], sent: dict[str, str], body: bytes) -> None:
        query = f"?{urlencode(asked)}" if asked else ""
        answer = _answer(address, method, f"{path}{query}", sent, body)
        if answer is None:
            return  # refused before it was read
        status, text = answer
        assert status < 500 or status == 503, f"{status}: {text[:300]}"
        assert "Traceback (most recent call last)" not in text

    address = url.removeprefix("http://")
    ask()


def _answer(address: str, method: str, path: str, sent: dict[str, str], body: bytes) -> tuple[int, str] | None:
    connection = http.client.HTTPConnection(address, timeout=120)
    with contextlib.closing(connection), contextlib.suppress(http.client.HTTPException, OSError):
        connection.request(method, path, body, sent)
        with connection.getresponse() as answer:
            return answer.status, answer.read().decode(errors="replace")
    return None
