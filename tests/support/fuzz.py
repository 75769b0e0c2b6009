"""Questions to a daemon's HTTP API at random: those that its description in docs/openapi has, and their neighbours, by
schemathesis; and those that nobody would ask (other paths, methods, headers, bodies), by hypothesis."""

import contextlib
import http.client
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote, urlencode

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.paths import REPOSITORY

OPENAPI = REPOSITORY / "docs" / "openapi"
CHECKS = """\
[checks.negative_data_rejection]
expected-statuses = [400, 403, 404, 405, 409, 414, 421, 431]
"""
"""With what a question is refused that the description does not allow."""
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


def described_paths(daemon: str) -> list[str]:
    return list(json.loads((OPENAPI / f"{daemon}.json").read_text())["paths"])


def expect_as_described(daemon: str, url: str, folder: Path, examples: int = 10) -> None:
    """Asks so many questions of each operation in docs/openapi, more at the bounds of each parameter, and wrong ones of
    each kind. Every answer has a status, a content type and a document that is described there, and what is described
    is accepted, what is not is refused."""
    config = folder / "schemathesis.toml"
    config.write_text(CHECKS)
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run"]
    command += [str(OPENAPI / f"{daemon}.json"), "--url", url, "--checks", "all"]
    command += ["--seed", "7", "--max-examples", str(examples), "--generation-database", "none", "--no-color"]
    command += ["--request-timeout", "120", "--suppress-health-check", "all", "--warnings", "off"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{daemon} is not as docs/openapi/{daemon}.json says\n{done.stdout}{done.stderr}"


def _answer(address: str, method: str, path: str, sent: dict[str, str], body: bytes) -> tuple[int, str] | None:
    connection = http.client.HTTPConnection(address, timeout=300)
    with contextlib.closing(connection), contextlib.suppress(http.client.HTTPException, OSError):
        connection.request(method, path, body, sent)
        with connection.getresponse() as answer:
            return answer.status, answer.read().decode(errors="replace")
    return None
