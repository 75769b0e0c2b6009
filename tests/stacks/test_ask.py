"""An ask is believed from who may ask, and from nobody else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from laggard.stacks.ask import FILE, MAX_SAMPLES, MAX_SECONDS, Ask, new_ask, read_ask, write_ask

ME = os.geteuid()


def test_what_is_asked_is_read(tmp_path: Path) -> None:
    ask = new_ask(ME, "j", frozenset({1, 5}), samples=100, seconds=5.0)
    write_ask(str(tmp_path / ".ask"), ask)
    assert read_ask(str(tmp_path / ".ask"), frozenset({ME})) == ask


def test_it_is_for_the_ranks_that_it_names_and_for_a_while() -> None:
    ask = Ask("0" * 16, 7, "j", frozenset({1}), 10, 1.0, until=130.0)
    assert ask.is_for(7, "j", 1, 100.0)
    assert not ask.is_for(7, "j", 2, 100.0)
    assert not ask.is_for(8, "j", 1, 100.0)
    assert not ask.is_for(7, "k", 1, 100.0)
    assert not ask.is_for(7, "j", 1, 131.0), "it is over"
    assert not ask.is_for(7, "j", 1, 10.0), "its clock is not this one"
    assert ask._replace(ranks=None).is_for(7, "j", 99, 100.0)


def test_a_folder_that_anybody_may_write_or_another_user_owns_is_not_believed(tmp_path: Path) -> None:
    folder = tmp_path / ".ask"
    write_ask(str(folder), new_ask(ME, "j", None))
    assert read_ask(str(folder), frozenset({ME + 1})) is None
    folder.chmod(0o777)
    assert read_ask(str(folder), frozenset({ME})) is None
    folder.chmod(0o755)
    (tmp_path / "link").symlink_to(folder)
    assert read_ask(str(tmp_path / "link"), frozenset({ME})) is None
    assert read_ask(str(tmp_path / "none"), frozenset({ME})) is None


@pytest.mark.parametrize(
    "change",
    [
        {"laggard_ask": 2},
        {"ident": "../../etc"},
        {"owner": "root"},
        {"ranks": [-1]},
        {"ranks": list(range(5000))},
        {"samples": None},
        {"job_id": 3},
    ],
)
def test_an_ask_with_an_impossible_value_is_none(tmp_path: Path, change: dict[str, object]) -> None:
    folder = tmp_path / ".ask"
    write_ask(str(folder), new_ask(ME, "j", None))
    value = json.loads((folder / FILE).read_text())
    (folder / FILE).write_text(json.dumps({**value, **change}))
    assert read_ask(str(folder), frozenset({ME})) is None


def test_no_ask_takes_more_than_its_bound(tmp_path: Path) -> None:
    write_ask(str(tmp_path / ".ask"), new_ask(ME, "j", None, samples=10**9, seconds=1e9))
    ask = read_ask(str(tmp_path / ".ask"), frozenset({ME}))
    assert ask is not None and (ask.samples, ask.seconds) == (MAX_SAMPLES, MAX_SECONDS)
