"""Files with secrets that every user of the machine can read: refused where they give power, else warned of."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.certificates import Files

from laggard.cli import main
from laggard.collector.prometheus.client import Login
from laggard.kit.secret_files import exposure
from laggard.kit.tls import ENV_CERT_FILE, ENV_KEY_FILE, client_context
from laggard.kit.web_config import load_web_config


def secret(open_dir: Path, mode: int, text: str = "a secret\n") -> Path:
    path = open_dir / "secret"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_file_is_exposed_where_strangers_reach_it_and_may_read_or_change_it(open_dir: Path) -> None:
    for mode, word in ((0o644, "read"), (0o604, "read"), (0o602, "change")):
        path = secret(open_dir, mode)
        assert exposure(str(path)) == f"is for every user of this machine to {word}: chmod o= {path}"
    for mode in (0o600, 0o640, 0o660):
        assert exposure(str(secret(open_dir, mode))) == ""
    os.symlink(secret(open_dir, 0o644), open_dir / "link")
    assert exposure(str(open_dir / "link")).endswith(f"chmod o= {open_dir / 'secret'}"), "a link's target counts"
    open_dir.chmod(0o750)
    assert exposure(str(open_dir / "secret")) == "", "strangers do not get to it"
    assert exposure(str(open_dir / "absent")) == ""


def test_tokens_that_give_power_are_refused_in_one_line(open_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = secret(open_dir, 0o644)
    for name, key in (("collector", "ring_token_file"), ("idle-rings", "token_file")):
        settings = {key: str(token)} | ({"collector": "http://127.0.0.1:9"} if name == "idle-rings" else {})
        (open_dir / name).write_text(json.dumps(settings))
    for words, where in (
        (("ring", "--token-file", str(token)), "--token-file"),
        (("collector", "--config", str(open_dir / "collector"), "--web.listen-address", ":0"), "ring_token_file"),
        (("agent", "--idle-rings", "--config", str(open_dir / "idle-rings")), "token_file"),
        (("dashboards", "push", "http://127.0.0.1:9", "--token-file", str(token)), "--token-file"),
    ):
        assert main(words) == 64
        said = capsys.readouterr().err.splitlines()[-1]
        assert f"{where} {token} is for every user of this machine to read: chmod o= {token}" in said, words


def test_keys_and_logins_are_taken_with_a_warning(
    open_dir: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files.make(open_dir)
    key = open_dir / "server.key"
    monkeypatch.setenv(ENV_CERT_FILE, str(open_dir / "server.pem"))
    monkeypatch.setenv(ENV_KEY_FILE, str(key))
    load_web_config(files.config())
    client_context()
    assert not caplog.messages, "the modes are right"
    key.chmod(0o644)
    os.utime(key)  # a context is kept until a file changes
    load_web_config(files.config())
    client_context()
    assert Login(str(secret(open_dir, 0o644, "token"))).headers() == {"Authorization": "Bearer token"}
    told = f"{key} is for every user of this machine to read: chmod o= {key}"
    assert caplog.messages == [
        f"key_file {told}",
        f"{ENV_KEY_FILE} {told}",
        f"the login for Prometheus in {open_dir / 'secret'} is for every user of this machine to read: "
        f"chmod o= {open_dir / 'secret'}",
    ]
