"""Asks a Prometheus, or what speaks its API: Thanos, Mimir, VictoriaMetrics. Logs in by files, reads answers by their
types, and tells errors in the user's words."""

from __future__ import annotations

import base64
import contextlib
import re
import time
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import httpx
import msgspec
import numpy as np
from numpy.typing import NDArray

from laggard.kit.address import without_login
from laggard.kit.errors import CannotTell, UsageError
from laggard.kit.secret_files import ReadAnew, read_secret, warn_of_exposed
from laggard.kit.words import printable_line

MAX_BYTES = 512 << 20
"""The largest answer: ten moments of a million ranks have some 400 MB."""

_PARTIAL = "isPartial: a storage node of VictoriaMetrics did not answer"


class Labels(msgspec.Struct, frozen=True):
    """The labels that laggard reads; others are passed over."""

    job_id: str = ""
    user: str = ""
    rank: str = ""
    hostname: str = ""
    gpu: str = ""
    world_size: str = ""
    attempt: str = ""
    instance: str = ""
    phase: str = ""
    group: str = ""
    cluster: str = ""
    code: str = ""
    severity: str = ""
    device: str = ""


class Series(NamedTuple):
    """N series: their labels; how many samples each has; all times (Unix seconds) and values, one series after the
    other."""

    labels: list[Labels]
    counts: NDArray[np.int64]
    times: NDArray[np.float64]
    values: NDArray[np.float64]


class AnswerError(Exception):
    """An answer that is not Prometheus', or an error that Prometheus reports, in one line."""


class _Series(msgspec.Struct, frozen=True):
    """One series, of a range or of an instant. What has neither, as a native histogram, has no sample that counts."""

    metric: Labels
    values: tuple[tuple[float, str], ...] = ()
    value: tuple[float, str] | None = None


class _Data(msgspec.Struct, frozen=True):
    result: tuple[_Series, ...] = ()


class _Frame(msgspec.Struct, frozen=True):
    status: str
    data: _Data = _Data()
    errorType: str = ""
    error: str = ""
    warnings: tuple[str, ...] = ()
    isPartial: bool = False
    """VictoriaMetrics' cluster says so where a vmstorage did not answer (its documentation, "Cluster availability")."""


def read_answer(body: bytes) -> tuple[Series, tuple[str, ...]]:
    """The series, and what Prometheus left out, or a Thanos or a cluster of VictoriaMetrics in front of several. Raises
    AnswerError."""
    try:
        frame = msgspec.json.decode(body, type=_Frame)
    except msgspec.ValidationError as error:
        raise AnswerError(f"the answer is none of Prometheus': {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise AnswerError("the answer is cut off, or not the JSON of Prometheus (a login page?)") from None
    if frame.status != "success":
        raise AnswerError(f"Prometheus reports {frame.errorType or 'an error'}: {frame.error}")
    told = [it.values or ((it.value,) if it.value else ()) for it in frame.data.result]
    counts = np.fromiter(map(len, told), np.int64, len(told))
    samples, total = list(chain.from_iterable(told)), int(counts.sum())
    try:
        values = np.fromiter((float(value) for _, value in samples), np.float64, total)
    except ValueError:
        raise AnswerError("the answer has samples that are no numbers") from None
    times = np.fromiter((time for time, _ in samples), np.float64, total)
    found = Series([it.metric for it in frame.data.result], counts, times, values)
    return found, (*frame.warnings, *([_PARTIAL] if frame.isPartial else []))


# The part of a request to Prometheus beside the query: the login and other headers, from files. A collector asks for
# weeks, in which both rotate: the files are read anew when they change.

_MAX_SECRET_BYTES: Final = 1 << 16
_MAX_HEADERS: Final = 16
_HEADER: Final = re.compile(r"([A-Za-z0-9!#$%&'*+.^_`|~-]+):[ \t]*([ -~]+)")
_OWN: Final = ("host", "content-length", "content-type", "content-encoding", "connection", "transfer-encoding")


class Login:
    """The headers of the next query."""

    def __init__(
        self,
        token_file: str | None = None,
        basic_file: str | None = None,
        headers_file: str | None = None,
        headers_setting: str = "prometheus_headers_file",
    ) -> None:
        """Of the two files of a login the first that is named counts. `headers_setting`: the flag or setting that names
        the file of headers. Raises UsageError."""
        self._files = []
        if path := token_file or basic_file:
            self._files.append(_login_file(path, basic=not token_file))
        if headers_file:
            self._files.append(_headers_file(headers_file, headers_setting))

    def headers(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for file in self._files:
            found.update(file.value())
        return found


def _login_file(path: str, basic: bool) -> ReadAnew[Mapping[str, str]]:
    def read() -> Mapping[str, str]:
        return {"Authorization": _basic(path) if basic else f"Bearer {_secret(path)}"}

    return ReadAnew(
        path, read, "login for Prometheus stays", lambda _: f"the login for Prometheus is read anew from {path}"
    )


def _headers_file(path: str, setting: str) -> ReadAnew[Mapping[str, str]]:
    def read() -> Mapping[str, str]:
        headers = _read_headers(path, setting)
        if any(name.lower() == "authorization" for name in headers):
            raise UsageError(f"{path} has a login in it: that goes into a file of its own, for its own setting")
        return headers

    return ReadAnew(path, read, f"{setting} stays", lambda _: f"{setting} is read anew from {path}")


def _read_headers(path: str, setting: str) -> dict[str, str]:
    """The lines `NAME: VALUE` of a file. Raises UsageError, whose text has nothing of what is in it. `setting`: what
    names the file."""
    try:
        with open(path, encoding="ascii") as file:
            text = file.read(_MAX_SECRET_BYTES)
    except OSError as error:
        raise UsageError(f"{setting} {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{setting} {path} is not ASCII text") from None
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found = [_HEADER.fullmatch(line) for line in lines]
    if not lines or len(lines) > _MAX_HEADERS or not all(found):
        raise UsageError(f"{setting} {path} has to have 1 to {_MAX_HEADERS} lines of the form NAME: VALUE")
    headers = {each[1]: each[2] for each in found if each}
    if any(name.lower() in _OWN for name in headers):
        raise UsageError(f"{setting} {path} sets one of the headers that laggard sets: {', '.join(_OWN)}")
    return headers


def _basic(path: str) -> str:
    pair = _secret(path)
    if ":" not in pair:
        raise UsageError(f"{path} has no USER:PASSWORD in it")
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


def _secret(path: str) -> str:
    """The only line of the file. Its text is in no message."""
    text = read_secret(path, "the login for Prometheus in", _MAX_SECRET_BYTES)
    if not text.isascii() or not text.isprintable():
        raise UsageError(f"{path} has to hold one line of printable ASCII, without which there is no login")
    warn_of_exposed(path, "the login for Prometheus in")
    return text


QUERY_SECONDS = 60.0
"""The time limit of one query; Prometheus itself allows two minutes by default."""

CONNECT_SECONDS = 5.0
"""The time limit of a connection, which a server that only is slow makes at once."""

ANSWER_SECONDS = 180.0
"""The time in which an answer has to be read to its end: a server that sends a byte now and then never times out."""

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

    def over_time(self, query: str, start: float, end: float, step: float) -> Series:
        """The values at `start`, and every `step` seconds up to `end`. Raises UsageError."""
        times = {"start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"}
        return self._ask("query_range", {"query": query, **times})

    def at(self, query: str, moment: float | None) -> Series:
        """The values at `moment`, by default now by the server's clock. Raises UsageError."""
        return self._ask("query", {"query": query, **({} if moment is None else {"time": f"{moment:.3f}"})})

    def labels_at(self, query: str, moment: float) -> tuple[Labels, ...]:
        """The labels of the series at `moment`. What is asked again about the same moment is not asked of the server
        again: each of many jobs asks for the nodes that fail. Raises UsageError."""
        asked, newest = (query, moment), self._newest
        if newest is None or newest[0] != asked:
            self._newest = newest = asked, tuple(self.at(*asked).labels)
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

    def _ask(self, path: str, form: Mapping[str, str]) -> Series:
        began = time.monotonic()
        form = {**form, **_FRESH, "timeout": f"{self._seconds:.0f}s"}
        url, headers = f"{self.url}/api/v1/{path}", self._login.headers()
        try:
            with self._client.stream("POST", url, data=form, headers=headers) as response:
                self._check(response)
                found, warnings = read_answer(_whole(response.iter_bytes(), began + ANSWER_SECONDS))
        except AnswerError as error:
            raise CannotTell(f"Prometheus at {self.url}: {printable_line(str(error), 500)}") from None
        except httpx.TimeoutException as error:
            connects = isinstance(error, httpx.ConnectTimeout)
            seconds = min(CONNECT_SECONDS, self._seconds) if connects else self._seconds
            raise CannotTell(
                f"Prometheus at {self.url} did not answer within {seconds:.0f} s: it is overloaded, or far away"
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise CannotTell(f"no Prometheus answers at {self.url}: {printable_line(str(error), 200)}") from None
        self.warnings += [printable_line(text, 300) for text in warnings]
        return found

    def _check(self, response: httpx.Response) -> None:
        """Raises UsageError where the status is not 200."""
        if response.status_code == httpx.codes.OK:
            return
        with contextlib.suppress(httpx.HTTPError):
            response.read()
        status, said = response.status_code, _said(response)
        raise UsageError(f"Prometheus at {self.url} {_meaning(status)}" + (f": {said}" if said else ""))


def _whole(chunks: Iterable[bytes], deadline: float) -> bytes:
    """Raises AnswerError where they are too many, or one comes after the `deadline` (time.monotonic())."""
    body = bytearray()
    for chunk in chunks:
        body += chunk
        if time.monotonic() > deadline:
            raise AnswerError(f"the answer has not come to its end within {ANSWER_SECONDS:.0f} s")
        if len(body) > MAX_BYTES:
            raise AnswerError(f"the answer has more than {MAX_BYTES >> 20} MiB: choose one job with --job")
    return bytes(body)


def _said(response: httpx.Response) -> str:
    """The text of Prometheus' error, in its own words."""
    with contextlib.suppress(Exception):
        return printable_line(str(response.json()["error"]), 500)
    return ""


_MEANINGS: Final = {
    403: "refuses ({}): give --bearer-token-file FILE, or --basic-auth-file FILE with USER:PASSWORD in it, of one who"
    " may read; Mimir and Cortex want X-Scope-OrgID in --headers-file FILE",
    404: "has no API there ({}): is a path missing behind the host, as /prometheus or /select/0/prometheus?",
    422: "cannot answer ({}): choose one job with --job, or raise its --query.max-samples",
    429: "takes no more queries now ({}): raise its limits for this tenant",
    503: "is overloaded or away ({})",
    300: "sends elsewhere ({}), to a login perhaps: name the API itself",
}
_ALIKE: Final = {401: 403, 502: 503, 504: 503}


def _meaning(status: int) -> str:
    alike = 300 if 300 <= status < 400 else _ALIKE.get(status, status)
    return _MEANINGS.get(alike, "answers {}").format(status)


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
