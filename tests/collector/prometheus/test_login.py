"""The login for Prometheus, and other headers, while their files rotate."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.certificates import Start
from support.ports import free_port

from laggard.collector.prometheus.client import Login, Prometheus
from laggard.kit.errors import UsageError


def put(path: Path, text: str) -> Path:
    """The file as a whole, by a rename."""
    fresh = path.with_suffix(".new")
    fresh.touch(0o600)
    fresh.write_text(text)
    os.replace(fresh, path)
    return path


def basic(pair: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


def test_each_file_is_read_anew_when_it_changes(tmp_path: Path) -> None:
    token, headers = put(tmp_path / "token", "old\n"), put(tmp_path / "headers", "X-Scope-OrgID: a\n")
    login = Login(str(token), None, str(headers))
    assert login.headers() == {"Authorization": "Bearer old", "X-Scope-OrgID": "a"}
    put(token, "new\n")
    assert login.headers() == {"Authorization": "Bearer new", "X-Scope-OrgID": "a"}
    put(headers, "X-Scope-OrgID: b\nX-More: c\n")
    assert login.headers() == {"Authorization": "Bearer new", "X-Scope-OrgID": "b", "X-More": "c"}
    assert Login(None, str(put(token, "ada:lovelace"))).headers() == basic("ada:lovelace")
    assert Login().headers() == Login("", "", "").headers() == {}


@pytest.mark.parametrize("half", ["", "\n", "ada", "ada:\0", "ada:x\nbob:y\n"])
def test_half_a_file_leaves_the_former_login(tmp_path: Path, half: str, caplog: pytest.LogCaptureFixture) -> None:
    path = put(tmp_path / "login", "ada:lovelace")
    login = Login(None, str(path))
    path.write_text(half)
    assert [login.headers() for _ in range(3)] == [basic("ada:lovelace")] * 3
    (said,) = caplog.messages
    assert said.startswith("the former login for Prometheus stays in use: ") and "lovelace" not in said
    path.write_text("ada:new")
    assert login.headers() == basic("ada:new")


def test_half_a_file_of_headers_leaves_the_former_ones(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = put(tmp_path / "headers", "X-Scope-OrgID: a\n")
    login = Login(headers_file=str(path), headers_setting="--headers-file")
    for half in ("X-Scope-O", "Authorization: Bearer lovelace"):
        path.write_text(half)
        assert [login.headers() for _ in range(3)] == [{"X-Scope-OrgID": "a"}] * 3
    path.unlink()
    assert login.headers() == {"X-Scope-OrgID": "a"}
    assert len(caplog.messages) == 3 and "lovelace" not in caplog.text
    assert all("the former --headers-file stays in use: " in it for it in caplog.messages)


@pytest.mark.parametrize(
    ("text", "told"),
    [(None, "cannot be read"), ("lovelace\n", "lines of the form NAME: VALUE"), ("Host: lovelace\n", "laggard sets")],
)
def test_a_file_of_headers_that_is_none_is_one_line_without_what_is_in_it(
    tmp_path: Path, text: str | None, told: str
) -> None:
    path = tmp_path / "headers"
    if text is not None:
        put(path, text)
    with pytest.raises(UsageError, match=told) as raised:
        Login(headers_file=str(path))
    assert "lovelace" not in str(raised.value) and str(path) in str(raised.value)


PASSWORDS = {
    "old-password": "$2b$04$py5oB77E685ksUiGKB/ANeAnD02bCD.6VW9YmGWUk0QqfhKf8jWtm",
    "new-password": "$2b$04$mdidxkauEGOQ2felH6cHf.H48pUunuhc/1WE/qdRXZUQ/XEEOqpLO",
}
"""With what Prometheus' web configuration wants of them, bcrypt's hashes."""


class Guarded:
    """A real Prometheus that wants a login, and reads who may log in at each request (its documentation, "HTTPS and
    authentication")."""

    def __init__(self, folder: Path) -> None:
        self._config, self.url = folder / "web.yml", f"http://127.0.0.1:{free_port()}"
        (folder / "prometheus.yml").write_text("global: {}\n")
        self.accept("old-password")
        command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
        command += [f"--web.config.file={self._config}", f"--web.listen-address={self.url[7:]}", "--log.level=error"]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def accept(self, password: str) -> None:
        put(self._config, f"basic_auth_users: {{ada: '{PASSWORDS[password]}'}}\n")

    def wait_ready(self) -> None:
        request = urllib.request.Request(f"{self.url}/-/ready", headers=basic("ada:old-password"))
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=5):
                return
            time.sleep(0.1)
        raise AssertionError("Prometheus does not start")

    def end(self) -> None:
        self._process.terminate()
        self._process.wait()


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    if not shutil.which("prometheus"):
        pytest.skip("prometheus is missing")
    server = Guarded(tmp_path)
    try:
        server.wait_ready()
        yield server
    finally:
        server.end()


@pytest.mark.slow
def test_a_real_prometheus_and_a_password_that_is_replaced(guarded: Guarded, tmp_path: Path) -> None:
    path = put(tmp_path / "login", "ada:old-password")
    prometheus = Prometheus(guarded.url, Login(None, str(path)))
    try:
        assert not list(prometheus.at("up", None))
        guarded.accept("new-password")
        with pytest.raises(UsageError, match=r"refuses \(401\)"):
            list(prometheus.at("up", None))
        put(path, "ada:new-password\n")
        assert not list(prometheus.at("up", None))
    finally:
        prometheus.close()


@pytest.mark.slow
def test_a_collector_takes_the_new_password_without_a_restart(guarded: Guarded, start: Start, tmp_path: Path) -> None:
    path = put(tmp_path / "login", "ada:old-password")
    (tmp_path / "collector.yaml").write_text(
        f"targets: []\nprometheus: {guarded.url}\nprometheus_basic_auth_file: {path}\n"
        "prometheus_interval_seconds: 0.2\nincidents_database: ''\n"
    )
    collector = start("collector", "--config", str(tmp_path / "collector.yaml"))

    def up() -> bool:
        """Whether Prometheus answers the collector: else a note says why not."""
        with urllib.request.urlopen(f"{collector.url}/api/v1/findings", timeout=60) as answer:
            return not any(note["kind"] == "prometheus" for note in json.load(answer)["notes"])

    collector.wait_until(up)
    path.unlink()
    collector.wait_until(lambda: f"stays in use: the login for Prometheus in {path} cannot be read" in collector.said())
    assert up()
    guarded.accept("new-password")
    collector.wait_until(lambda: not up())
    put(path, "ada:new-password")
    collector.wait_until(up)
    assert collector.said().count("the former login") == collector.said().count("is read anew from") == 1
    assert "password" not in collector.said().replace(str(path), "")
