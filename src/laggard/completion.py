"""`laggard completion SHELL`: a script that completes commands and flags, by shtab, from the parsers themselves.

shtab's scripts start no laggard at a key press, as argcomplete's would, and it knows fish; both are kept and small.
"""

from __future__ import annotations

import argparse
import sys
from typing import Final

SHELLS: Final = ("bash", "zsh", "fish")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="which shell the script is for")


def main(arguments: argparse.Namespace) -> int:
    import shtab

    from laggard.cli import whole_parser  # which is above: it has all commands

    sys.stdout.write(shtab.complete(whole_parser(only_installed=True), arguments.shell))
    return 0
