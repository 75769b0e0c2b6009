"""An ask for stacks: where it may stand, who is believed, and what others put in its place."""

import json
import os
import stat
import time
from pathlib import Path

import pytest
from support.readers import NOBODY, as_root

from laggard.stacks import ask as asks
from laggard.stacks.ask import FILE, Ask, new_ask, read_ask, trusted_users, write_ask

ME = frozenset({os.geteuid()})


def test_what_was_asked_is_read(rank_dir: Path) -> None:
    ask = new_ask(1000, "job one", frozenset({3, 1}), samples=50, seconds=2.5)
    folder = str(rank_dir / ".ask")
    write_ask(folder, ask, ME)
    assert read_ask(folder, ME) == ask
    assert os.listdir(folder) == [FILE]
    write_ask(folder, newer := new_ask(1000, "job one", None), ME)
    assert read_ask(folder, ME) == newer and os.listdir(folder) == [FILE]


def test_every_user_may_read_it_and_no_other_may_write(rank_dir: Path) -> None:
    before = os.umask(0o077)
    try:
        write_ask(str(rank_dir / ".ask"), new_ask(1000, "j", None), ME)
    finally:
        os.umask(before)
    assert stat.S_IMODE((rank_dir / ".ask").stat().st_mode) == 0o755
    assert stat.S_IMODE((rank_dir / ".ask" / FILE).stat().st_mode) == 0o644


def test_the_mode_that_an_administrator_chose_stays(rank_dir: Path) -> None:
    (rank_dir / ".ask").mkdir()
    (rank_dir / ".ask").chmod(0o775)
    write_ask(str(rank_dir / ".ask"), new_ask(1000, "j", None), ME)
    assert stat.S_IMODE((rank_dir / ".ask").stat().st_mode) == 0o775


def test_a_folder_in_which_everybody_can_write_is_not_believed(rank_dir: Path) -> None:
    folder = rank_dir / ".ask"
    write_ask(str(folder), new_ask(1000, "j", None), ME)
    folder.chmod(0o777)
    assert read_ask(str(folder), ME) is None
    folder.chmod(0o755)
    (rank_dir / "link").symlink_to(folder)
    assert read_ask(str(rank_dir / "link"), ME) is None and read_ask(str(rank_dir / "none"), ME) is None


@as_root
def test_another_users_folder_is_not_believed_and_root_puts_it_aside(rank_dir: Path) -> None:
    folder = rank_dir / ".ask"
    folder.mkdir()
    (folder / FILE).write_text(json.dumps({asks.KEY: 1, **new_ask(0, "j", None)._asdict()}))
    for path in (folder, folder / FILE):
        os.chown(path, NOBODY, NOBODY)
    trusted = trusted_users(str(rank_dir))
    assert read_ask(str(folder), trusted) is None
    assert read_ask(str(folder), trusted | {NOBODY}) is not None  # in their own folder they ask their own ranks
    write_ask(str(folder), ask := new_ask(1000, "j", None), trusted)
    assert read_ask(str(folder), trusted) == ask
    assert (folder / FILE).stat().st_uid == 0
    (aside,) = rank_dir.glob(".ask-of-another-*")
    assert aside.stat().st_uid == NOBODY


@as_root
def test_a_link_in_its_place_leads_nowhere(rank_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "etc"
    target.mkdir()
    (rank_dir / ".ask").symlink_to(target)
    os.chown(rank_dir / ".ask", NOBODY, NOBODY, follow_symlinks=False)
    write_ask(str(rank_dir / ".ask"), new_ask(1000, "j", None), trusted_users(str(rank_dir)))
    assert not list(target.iterdir()) and (rank_dir / ".ask").is_dir() and not (rank_dir / ".ask").is_symlink()


@as_root
def test_who_is_not_root_is_told_that_the_place_is_taken(rank_dir: Path) -> None:
    (rank_dir / ".ask").mkdir()
    os.chown(rank_dir / ".ask", NOBODY, NOBODY)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setuid(1234)
            write_ask(str(rank_dir / ".ask"), new_ask(1234, "j", None), frozenset({1234}))
        except PermissionError as error:
            status = 0 if error.strerror == "it is another user's, or everybody can write in it" else 2
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "[" * 9000,
        json.dumps({asks.KEY: 1}),
        json.dumps({asks.KEY: 1, **new_ask(0, "j", None)._asdict(), "ident": "../../etc"}),
        json.dumps({asks.KEY: 1, **new_ask(0, "j", None)._asdict(), "owner": "root"}),
        json.dumps({asks.KEY: 1, **new_ask(0, "j", None)._asdict(), "samples": None}),
        json.dumps({asks.KEY: 1, **new_ask(0, "j", None)._asdict(), "job_id": 3}),
        json.dumps({asks.KEY: 1, **new_ask(0, "j", None)._asdict(), "ranks": [-1]}),
        json.dumps({asks.KEY: 1, **new_ask(0, "j", None)._asdict(), "ranks": list(range(2000))}),
        json.dumps({asks.KEY: 2, **new_ask(0, "j", None)._asdict()}),
    ],
)
def test_what_is_no_ask_asks_nothing(rank_dir: Path, text: str) -> None:
    (rank_dir / ".ask").mkdir()
    (rank_dir / ".ask" / FILE).write_text(text)
    assert read_ask(str(rank_dir / ".ask"), ME) is None


def test_an_ask_has_bounds_whatever_stands_in_it(rank_dir: Path) -> None:
    (rank_dir / ".ask").mkdir()
    value = {
        asks.KEY: 1,
        **new_ask(0, "j", None)._asdict(),
        "samples": 10**9,
        "seconds": 1e9,
        "until": time.time() + 1e9,
    }
    (rank_dir / ".ask" / FILE).write_text(json.dumps(value))
    found = read_ask(str(rank_dir / ".ask"), ME)
    assert found is not None and (found.samples, found.seconds) == (asks.MAX_SAMPLES, asks.MAX_SECONDS)
    assert not found.is_for(0, "j", 0, time.time())  # one that never ends


def test_it_is_for_the_ranks_that_it_names_and_for_a_while() -> None:
    ask = Ask("0" * 16, 7, "j", frozenset({1}), 10, 1.0, until=130.0)
    assert ask.is_for(7, "j", 1, 100.0)
    assert not ask.is_for(7, "j", 2, 100.0)
    assert not ask.is_for(8, "j", 1, 100.0)
    assert not ask.is_for(7, "k", 1, 100.0)
    assert not ask.is_for(7, "j", 1, 131.0), "it is over"
    assert not ask.is_for(7, "j", 1, 10.0), "its clock is not this one"
    assert ask._replace(ranks=None).is_for(7, "j", 99, 100.0)
