"""Asks a Prometheus, or what speaks its API: Thanos, Mimir, VictoriaMetrics. Errors are told in the user's words."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

import httpx

from laggard.address import without_login
from laggard.collector.prometheus.answer import Answer, AnswerError, Labels, Series
from laggard.collector.prometheus.login import Login
from laggard.errors import UsageError
from laggard.text.words import printable_line

QUERY_SECONDS = 60.0
"""The time limit of one query; Prometheus itself allows two minutes by default."""

CONNECT_SECONDS = 5.0
"""The time limit of a connection, which a server that only is slow makes at once."""

ANSWER_SECONDS = 180.0
"""The time in which an answer has to be read to its end: a server that sends a byte now and then never times out."""

_CHUNK_BYTES = 1 << 20
_HEADERS = {
    "Accept-Encoding": "identity",  # packing takes Prometheus longer than sending
    "Cache-Control": "no-store",  # for the caches of Cortex' and Mimir's query frontends
}

_FRESH = {"nocache": "1", "latency_offset": "1ms"}
"""The parameters without which VictoriaMetrics hides the last 30 s (its -search.latencyOffset, which a query may name
since 1.85.2), and rounds times; others pass them over."""


class Prometheus:
    """One server. To be used by several threads at once."""

    def __init__(
        self, url: str, login: Login | None = None, cluster: str = "", query_seconds: float | None = None
    ) -> None:
        """`cluster`: where it is not empty, only series with this label `cluster` are asked for. `query_seconds`: the
        time limit of a query, by default QUERY_SECONDS."""
        self.url = _checked_url(url)
        self.cluster = cluster
        self.warnings: list[str] = []
        self._login = login or Login()
        self._newest: tuple[tuple[str, float], tuple[Labels, ...]] | None = None
        self._seconds = query_seconds or QUERY_SECONDS
        timeout = httpx.Timeout(self._seconds, connect=min(CONNECT_SECONDS, self._seconds))
        self._client = httpx.Client(headers=_HEADERS, timeout=timeout)

    def close(self) -> None:
        self._client.close()

    def over_time(self, query: str, start: float, end: float, step: float) -> Iterator[Series]:
        """The values at `start`, and every `step` seconds up to `end`. Raises UsageError."""
        times = {"start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"}
        return self._ask("query_range", {"query": query, **times})

    def at(self, query: str, moment: float | None) -> Iterator[Series]:
        """The values at `moment`, by default now by the server's clock. Raises UsageError."""
        return self._ask("query", {"query": query, **({} if moment is None else {"time": f"{moment:.3f}"})})

    def labels_at(self, query: str, moment: float) -> tuple[Labels, ...]:
        """The labels of the series at `moment`. What is asked again about the same moment is not asked of the server
        again: each of many jobs asks for the nodes that fail. Raises UsageError."""
        asked, newest = (query, moment), self._newest
        if newest is None or newest[0] != asked:
            self._newest = newest = asked, tuple(labels for part in self.at(*asked) for labels in part.labels)
        return newest[1]

    def answers(self, seconds: float) -> bool:
        """Whether it answers the least of all questions, with so many seconds for the connection and as many for the
        answer: where it does, it is no more than slow."""
        form, headers = {"query": "vector(1)", **_FRESH}, self._login.headers()
        url = f"{self.url}/api/v1/query"
        try:
            with self._client.stream("POST", url, data=form, headers=headers, timeout=seconds) as response:
                return response.status_code == httpx.codes.OK
        except (httpx.HTTPError, httpx.InvalidURL, OSError):
            return False

    def _ask(self, path: str, form: Mapping[str, str]) -> Iterator[Series]:
        answer, began = Answer(), time.monotonic()
        form = {**form, **_FRESH, "timeout": f"{self._seconds:.0f}s"}
        url, headers = f"{self.url}/api/v1/{path}", self._login.headers()
        try:
            with self._client.stream("POST", url, data=form, headers=headers) as response:
                self._check(response)
                yield from answer.series(_in_time(response.iter_bytes(), began + ANSWER_SECONDS))
        except AnswerError as error:
            raise UsageError(f"Prometheus at {self.url}: {printable_line(str(error), 500)}") from None
        except httpx.TimeoutException as error:
            connects = isinstance(error, httpx.ConnectTimeout)
            seconds = min(CONNECT_SECONDS, self._seconds) if connects else self._seconds
            raise UsageError(
                f"Prometheus at {self.url} did not answer within {seconds:.0f} s: it is overloaded, or far away"
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise UsageError(f"no Prometheus answers at {self.url}: {printable_line(str(error), 200)}") from None
        self.warnings += [printable_line(text, 300) for text in answer.warnings]

    def _check(self, response: httpx.Response) -> None:
        """Raises UsageError where the status is not 200."""
        if response.status_code == httpx.codes.OK:
            return
        with contextlib.suppress(httpx.HTTPError):
            response.read()
        status, said = response.status_code, _said(response)
        raise UsageError(f"Prometheus at {self.url} {_meaning(status)}" + (f": {said}" if said else ""))


def _in_time(chunks: Iterator[bytes], deadline: float) -> Iterator[bytes]:
    """The chunks, put together to parts of some _CHUNK_BYTES. Raises AnswerError where one comes after the `deadline`
    (time.monotonic())."""
    held, size = list[bytes](), 0
    for chunk in chunks:
        if time.monotonic() > deadline:
            raise AnswerError(f"the answer has not come to its end within {ANSWER_SECONDS:.0f} s")
        held.append(chunk)
        size += len(chunk)
        if size >= _CHUNK_BYTES:
            yield b"".join(held)
            held, size = [], 0
    yield b"".join(held)


def _said(response: httpx.Response) -> str:
    """The text of Prometheus' error, in its own words."""
    with contextlib.suppress(Exception):
        return printable_line(str(response.json()["error"]), 500)
    return ""


def _meaning(status: int) -> str:
    if status in (401, 403):
        return (
            f"refuses ({status}): give --bearer-token-file FILE, or --basic-auth-file FILE with USER:PASSWORD in it,"
            " of one who may read; Mimir and Cortex want X-Scope-OrgID in --headers-file FILE"
        )
    if status == 404:
        return "has no API there (404): is a path missing behind the host, as /prometheus or /select/0/prometheus?"
    if 300 <= status < 400:
        return f"sends elsewhere ({status}), to a login perhaps: name the API itself"
    if status == 422:
        return "cannot answer (422): choose one job with --job, or raise its --query.max-samples"
    if status == 429:
        return "takes no more queries now (429): raise its limits for this tenant"
    if status in (502, 503, 504):
        return f"is overloaded or away ({status})"
    return f"answers {status}"


def _checked_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(
            f"--prometheus {printable_line(without_login(url), 200)} is no address: write http://HOST:9090"
        )
    if parts.username is not None or parts.password is not None:
        raise UsageError("--prometheus has a password in it: put USER:PASSWORD into a file, for --basic-auth-file")
    if parts.query or parts.fragment:
        raise UsageError(f"--prometheus {printable_line(without_login(url), 200)}: leave out what follows the path")
    return url.rstrip("/")
