"""Files of secrets: whose they have to be, what is a token, and that they are read anew."""

import json
import os
import time
from pathlib import Path

import pytest
from support.agents import put
from support.certificates import Files

from laggard.cli import main
from laggard.collector.prometheus.client import Login
from laggard.kit.errors import UsageError
from laggard.kit.secret_files import (
    MAX_TOKEN_BYTES,
    ReadAnew,
    TokenFile,
    exposure,
    proved_by,
    read_token_file,
    tokens_of,
)
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


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("one\n", ("one",)),
        ("  one  ", ("one",)),
        ("new\nold\n", ("new", "old")),
        ("\r\nnew\r\n\r\nold", ("new", "old")),
        ("same\nsame\n", ("same",)),
        (f"{'x' * MAX_TOKEN_BYTES}\n{'y' * MAX_TOKEN_BYTES}\r\n", ("x" * MAX_TOKEN_BYTES, "y" * MAX_TOKEN_BYTES)),
        ("", ()),
    ],
)
def test_a_line_is_a_token_and_the_first_is_sent(text: str, tokens: tuple[str, ...]) -> None:
    assert tokens_of(text) == tokens


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\nb\nc\n", "has 3 lines: 2 tokens at most, the one to send first"),
        ("x" * (MAX_TOKEN_BYTES + 1), f"has a line of more than {MAX_TOKEN_BYTES} characters, which is no token"),
        ("x\n" * (MAX_TOKEN_BYTES + 3), "which is too long"),
        (" \n\n", "is empty"),
    ],
)
def test_a_file_that_is_none_is_one_line(open_dir: Path, text: str, said: str) -> None:
    path = put(open_dir / "token", text)
    with pytest.raises(UsageError) as error:
        read_token_file(str(path), "ring_token_file")
    assert str(error.value).startswith(f"ring_token_file {path} ") and said in str(error.value)
    assert (
        "\n" not in str(error.value)
        and text.strip()[:20] not in str(error.value).replace(str(path), "")
        or not text.strip()
    )


def test_each_token_is_tried_also_after_one_has_held() -> None:
    tried: list[str] = []
    assert proved_by(("new", "old"), lambda token: not tried.append(token) and token == "new") == "new"
    assert tried == ["new", "old"], "else the time tells which it was"
    assert proved_by(("new", "old"), lambda token: False) is None
    assert proved_by((), lambda token: True) is None


def test_a_daemons_file_is_read_anew_when_it_changes(open_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    path = put(open_dir / "token", "old\n")
    tokens = TokenFile(str(path), "ring_token_file")
    assert (tokens.sent(), tokens.accepted(), bool(tokens)) == ("old", ("old",), True)
    put(path, "old\nnew\n")
    assert (tokens.sent(), tokens.accepted()) == ("old", ("old", "new"))
    put(path, "new\nold\n")
    assert (tokens.sent(), tokens.accepted()) == ("new", ("new", "old"))
    path.write_text("new\n")  # in place
    assert tokens.accepted() == ("new",)
    assert [it.getMessage() for it in caplog.records][1:] == [
        f"ring_token_file is read anew from {path}: two tokens",
        f"ring_token_file is read anew from {path}: one token",
    ]
    assert not any("new\n" in it or " old" in it for it in caplog.messages), "no token is logged"


def test_while_a_file_cannot_be_used_the_former_token_holds(open_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = put(open_dir / "token", "old\n")
    tokens = TokenFile(str(path), "ring_token_file")
    put(path, "new\n", 0o644)
    assert tokens.accepted() == tokens.accepted() == ("old",)
    assert caplog.messages == [
        f"the former token stays in use: ring_token_file {path} is for every user of this machine to read: "
        f"chmod o= {path}"
    ], "said once"
    path.chmod(0o600)
    assert tokens.accepted() == ("new",), "the mode alone has changed"
    path.unlink()
    assert tokens.accepted() == ("new",) and "cannot be read" in caplog.messages[-1]
    put(path, "a\nb\nc\n")
    assert tokens.accepted() == ("new",) and "has 3 lines" in caplog.messages[-1]
    put(path, "newest\n")
    assert tokens.accepted() == ("newest",)


def test_a_link_that_is_switched_is_another_file(open_dir: Path) -> None:
    """As Kubernetes replaces secrets."""
    for name in ("first", "second"):
        (open_dir / name).mkdir()
        put(open_dir / name / "token", name)
    now = time.time_ns()
    for name in ("first", "second"):
        os.utime(open_dir / name / "token", ns=(now, now))
    os.symlink("first", open_dir / "data")
    tokens = TokenFile(str(open_dir / "data" / "token"), "ring_token_file")
    assert tokens.sent() == "first"
    os.symlink("second", open_dir / "data.new")
    os.replace(open_dir / "data.new", open_dir / "data")
    assert tokens.sent() == "second"


def test_without_a_file_there_is_no_token() -> None:
    tokens = TokenFile("", "ring_token_file")
    assert (tokens.sent(), tokens.accepted(), bool(tokens)) == ("", (), False)


class Place:
    """A file, and what reads it; `fails`: what is wrong with the machine, and not with the file."""

    def __init__(self, path: Path) -> None:
        self.path, self.fails, self.reads = path, "", 0
        path.write_text("first")
        self.file = ReadAnew(str(path), self.read, "word stays", lambda word: f"a word of {len(word)} letters")

    def read(self) -> str:
        self.reads += 1
        if self.fails:
            raise UsageError(self.fails)
        try:
            return self.path.read_text()
        except OSError as error:
            raise UsageError(f"cannot be read: {error.strerror}") from None


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "word")


def test_what_is_not_changed_is_not_read_again(place: Place) -> None:
    assert [place.file.value() for _ in range(5)] == ["first"] * 5 and place.reads == 1


def test_a_file_that_was_gone_and_comes_back_is_told_of_once_each(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    place.path.unlink()
    assert [place.file.value() for _ in range(5)] == ["first"] * 5
    place.path.write_text("second")
    assert [place.file.value() for _ in range(5)] == ["second"] * 5
    assert caplog.messages == [
        "the former word stays in use: cannot be read: No such file or directory",
        "a word of 6 letters",
    ]


def test_what_the_machine_refused_for_a_moment_is_read_without_another_change(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """As where too many files are open: the file then bears no mark of it."""
    place.path.write_text("second")
    place.fails = "cannot be read: Too many open files"
    assert [place.file.value() for _ in range(5)] == ["first"] * 5
    assert caplog.messages == [f"the former word stays in use: {place.fails}"]
    place.fails = ""
    assert place.file.value() == "second"


def test_another_fault_is_another_line(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.path.unlink()
    place.file.value()
    place.fails = "is half"
    place.path.write_text("sec")
    place.file.value()
    assert [it.rpartition(": ")[2] for it in caplog.messages] == ["No such file or directory", "is half"]


def test_a_first_file_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    def read() -> str:
        raise UsageError("no")

    with pytest.raises(UsageError, match="no"):
        ReadAnew(str(tmp_path / "none"), read, "word stays", str)
    assert not os.listdir(tmp_path)
