"""The answer of a command: to a person's terminal by rich, else as plain text."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from laggard.kit.parts import Part, plain_text

if TYPE_CHECKING:
    from rich.console import Console


def show(parts: Sequence[Part]) -> None:
    """Prints `parts`: as they are, unless standard output is a terminal and rich is there."""
    show_or_write(lambda: parts, lambda: plain_text(parts))


def write_document(document: bytes) -> None:
    """Writes a JSON document and a line's end to standard output, also where a caller of main() has put a stream of
    text in its place."""
    binary = getattr(sys.stdout, "buffer", None)
    if binary is None:
        sys.stdout.write(document.decode() + "\n")
    else:
        binary.write(document + b"\n")


def show_or_write(parts: Callable[[], Sequence[Part]], plain: Callable[[], str]) -> None:
    """Does as show(), for what is said in other words on a terminal than in `plain`."""
    console = terminal_console()
    if console is None:
        sys.stdout.write(plain())
    else:
        from laggard.kit.dressed import dressed

        console.print(dressed(parts()), crop=False)
    sys.stdout.flush()


def terminal_console(lasting: bool = False) -> Console | None:
    """The console, where standard output is a terminal and rich is installed; else None. Nothing is imported where it
    is none: the gate before each job starts in a fraction of the time that rich takes to load. `lasting`: it follows
    the terminal's size."""
    if not sys.stdout.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    import shutil

    width, height = (None, None) if lasting else shutil.get_terminal_size()
    dumb = os.environ.get("TERM", "dumb") in ("dumb", "unknown")
    return Console(
        color_system=None if dumb else "auto",
        no_color=_without_colours(),
        width=width,
        height=height,
        highlight=False,
        emoji=False,
        markup=False,
    )


def _without_colours() -> bool:
    """Whether users want no colours, by what they set in their shell: https://no-color.org, https://bixense.com/clicolors."""
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("CLICOLOR") == "0"


# The breaking of a line into the rows of a terminal. Pure; without rich, for errors too.
