"""Writes docs/commands.md from the parsers: what laggard --help says of each command, and its arguments and flags.

.venv/bin/python scripts/commands_docs.py > docs/commands.md
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from laggard.cli import whole_parser
from laggard.commands import PARTS

HEAD = (Path(__file__).parent / "heads" / "commands.md").read_text(encoding="utf-8")


def page() -> str:
    (commands,) = (each for each in whole_parser()._actions if isinstance(each, argparse._SubParsersAction))
    told = {choice.dest: choice.help or "" for choice in commands._choices_actions}
    parts = [HEAD.rstrip()]
    for name, parser in commands.choices.items():
        if name in told:
            parts.append("\n".join(_section(name, told[name], parser)))
    return "\n\n".join(parts) + "\n"


def _section(name: str, told: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"## laggard {name}\n\n{_text(told)}\n"
    usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
    needed = usage if len(usage) <= 100 else f"{parser.prog} [OPTIONS] {' '.join(_positionals(parser))}".rstrip()
    yield f"```text\n{needed}\n```\n"
    rows = [row for action in parser._actions if (row := _row(action))]
    words = ((part.name.removeprefix(f"{name} "), part.help) for part in PARTS if part.name.startswith(f"{name} "))
    if not any(action.choices for action in parser._actions if not action.option_strings):  # which lists them
        rows += (
            f"| `{word}` | instead, with flags of its own: {_text(does)} |" for word, does in words if word[0] != "-"
        )
    if rows:
        yield "| | |\n|---|---|\n" + "\n".join(rows)


def _positionals(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if not action.option_strings and action.help is not argparse.SUPPRESS:
            yield str(action.metavar or action.dest).upper()


def _row(action: argparse.Action) -> str:
    """Empty of what no help shows."""
    if action.help is argparse.SUPPRESS or isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
        return ""
    value = ""
    if action.nargs != 0:
        value = str(action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper()))
    names = ", ".join(action.option_strings) or value
    shown = f"{names} {value}" if action.option_strings and value else names
    return f"| `{shown.replace('|', chr(92) + '|')}` | {_text((action.help or '') % _values(action))} |"


def _values(action: argparse.Action) -> dict[str, object]:
    return {**vars(action), "prog": "laggard"}


def _text(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    print(page(), end="")
