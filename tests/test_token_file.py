"""Files of tokens: one, or two while one takes the place of the other."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from support.agents import put

from laggard.kit.errors import UsageError
from laggard.kit.secret_files import MAX_TOKEN_BYTES, TokenFile, proved_by, read_token_file, tokens_of


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
