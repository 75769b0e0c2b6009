"""The login for Prometheus, and other headers, while their files rotate."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from support.agents import put

from laggard.collector.prometheus.client import Login


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
