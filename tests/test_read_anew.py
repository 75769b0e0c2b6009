"""Files that a daemon reads anew when they change, whatever becomes of them meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from laggard.kit.errors import UsageError
from laggard.kit.secret_files import ReadAnew


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
