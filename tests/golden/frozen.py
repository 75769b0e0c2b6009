"""The frozen answers: a file of recordings and one of machines, a line of JSON for each case, by name."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
from support.paths import DATA

from golden.row import Row, alike, text

FOLDER = DATA / "golden"
RECORDINGS, MACHINES = "recordings.jsonl", "machines.jsonl"
FREEZE = "`make golden ARGS=--write` freezes them"
BRING_BACK = "bring it back by `git checkout"


class Frozen(Row, frozen=True, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """A line of a file."""

    case: str


class DamagedError(Exception):
    """A file of frozen answers cannot be read. The message says which line is wrong, and what to do."""


class Difference(NamedTuple):
    """`was` or `now` is None of a case that is not frozen, or is none any more."""

    case: str
    was: Row | None
    now: Row | None

    def __str__(self) -> str:
        was = text(self.was) if self.was else "(not frozen)"
        return f"{self.case} | {was} | {text(self.now) if self.now else '(no such case)'}"


def file_of(case: str) -> str:
    """The name of the file that has the case."""
    return MACHINES if case.startswith("twins/") else RECORDINGS


def read(path: Path) -> dict[str, Row]:
    """The frozen answers by case. Raises DamagedError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise DamagedError(f"{path} has no frozen answers: {error}; {FREEZE}") from None
    found: dict[str, Row] = {}
    for number, line in enumerate(lines, 1):
        try:
            one = msgspec.json.decode(line, type=Frozen)
        except msgspec.DecodeError as error:
            raise DamagedError(f"{path}, line {number}: {error}; {BRING_BACK} {path}`") from None
        if one.case in found:
            raise DamagedError(f"{path}, line {number}: {one.case} comes twice; {BRING_BACK} {path}`")
        found[one.case] = Row(**{name: getattr(one, name) for name in Row.__struct_fields__})
    return found


def read_all(folder: Path = FOLDER, is_first: bool = False) -> dict[str, Row]:
    """Both files. `is_first`: neither need be there yet. Raises DamagedError."""
    paths = (folder / RECORDINGS, folder / MACHINES)
    return {case: row for path in paths if path.exists() or not is_first for case, row in read(path).items()}


def differences(
    was: Mapping[str, Row], now: Mapping[str, Row], is_asked: Callable[[str], bool] = lambda case: True
) -> list[Difference]:
    """What differs, by case. `is_asked`: of which frozen cases there should be an answer."""
    cases = now.keys() | {case for case in was if is_asked(case)}
    found = (Difference(case, was.get(case), now.get(case)) for case in sorted(cases))
    return [each for each in found if each.was is None or each.now is None or not alike(each.was, each.now)]


def write_all(was: Mapping[str, Row], changed: Iterable[Difference], folder: Path = FOLDER) -> None:
    """Freezes what differs. What does not stays as it was, to the digit, so that git shows what changed."""
    rows = {**was, **{each.case: each.now for each in changed}}
    kept = [(case, row) for case, row in sorted(rows.items()) if row is not None]
    folder.mkdir(parents=True, exist_ok=True)
    for name in (RECORDINGS, MACHINES):
        lines = (line(case, row) for case, row in kept if file_of(case) == name)
        (folder / name).write_text("".join(lines), encoding="utf-8")


def line(case: str, row: Row) -> str:
    return msgspec.json.encode({"case": case, **msgspec.to_builtins(row)}).decode() + "\n"
