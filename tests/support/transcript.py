"""Pages with commands: what a reader would type, and what the page says that they will see.

A fenced block `sh` has commands, a block `text` after it what they print (both streams), in which `...` stands for
anything. What needs a network or a machine that tests do not have stands indented on the page and is not run.
"""

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from support.paths import REPOSITORY

_BLOCK = re.compile(r"^```(sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


_MEASURED = re.compile(r"(?<![\w.])(?<!rank )(?<!ranks )\d+(?:\.\d+)?(?: [mu]?s\b)?", re.IGNORECASE)


class Command(NamedTuple):
    """A block of commands, and the lines that the page shows after it, if any."""

    script: str
    shown: tuple[str, ...]


def commands_of(page: Path) -> list[Command]:
    """The blocks of a page, in its order."""
    found: list[Command] = []
    for kind, body in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if kind == "sh":
            found.append(Command(body, ()))
        else:
            found[-1] = found[-1]._replace(shown=tuple(body.splitlines()))
    return found


def not_printed(command: Command, output: str) -> list[str]:
    """The lines of the page that the output does not have, in the page's order."""
    lines, at, absent = output.splitlines(), 0, []
    for line in command.shown:
        pattern = re.compile(".*".join(re.escape(part) for part in line.split("...")))
        place = next((n for n in range(at, len(lines)) if pattern.fullmatch(lines[n].rstrip())), None)
        if place is None:
            absent.append(line)
        else:
            at = place + 1
    return absent


def of_other_form(shown: Sequence[str], output: str) -> list[str]:
    """The lines of a page that the output does not have, in the page's order, whatever the measured numbers are."""
    return not_printed(Command("", tuple(map(_form, shown))), "\n".join(map(_form, output.splitlines())))


def _form(line: str) -> str:
    """A line with N for each number, but for that of a rank."""
    return _MEASURED.sub("N", line)


def run(
    command: Command,
    environment: Mapping[str, str],
    folder: Path = REPOSITORY,
    before: str = "",
    shell: tuple[str, ...] = (),
    seconds: float = 500.0,
    by_form: bool = False,
) -> str:
    """What the commands print, run in `folder` by bash. `before`: what that runs first; `shell`: what starts it.
    `by_form`: the page shows numbers that were measured, which are others each time."""
    done = subprocess.run(
        [*shell, "bash", "-c", f"{before}\n{command.script}"],
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
    )
    absent = of_other_form(command.shown, done.stdout) if by_form else not_printed(command, done.stdout)
    assert not absent, (
        f"the page shows lines that were not printed: {absent}\ncommands: {command.script}\n"
        f"printed: {done.stdout[-6000:]}"
    )
    return done.stdout
