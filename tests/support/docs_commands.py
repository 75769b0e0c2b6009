"""The command lines that the docs show, and laggard's own commands among them.

Commands that a test runs stand in fenced blocks `sh`. Other commands stand in fenced blocks `console` or are indented.
What is printed, pictured or listed stands in fenced blocks `text`; settings stand in `yaml`, or are YAML.
"""

import contextlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from laggard.cli import words_now
from laggard.commands import COMMANDS, PARTS

NAMES = {command.name for command in (*COMMANDS, *PARTS)}
_FENCE = re.compile(r"```(\w*)")
_KINDS = {"sh": "fenced", "console": "indented"}
_LIST = re.compile(r" *([-*]|\d+\.) ")
_REMARK = re.compile(r"(^| {2,})#.*")
_TOLD_APART = re.compile(r"&&|\|\||[|;&]")
_ASSIGNMENT = re.compile(r"[A-Z_]+=.*", re.DOTALL)


class Line(NamedTuple):
    """A command line of a page, joined where it goes on. `block`: fenced or indented."""

    page: Path
    number: int
    text: str
    block: str


def command_lines(page: Path) -> list[Line]:
    """The command lines of a page, in its order."""
    found: list[Line] = []
    for block, first, lines in _blocks(page.read_text(encoding="utf-8").splitlines()):
        if not _is_data("\n".join(lines)):
            found += [Line(page, first + place, text, block) for place, text in _joined(lines)]
    return found


def simple_commands(text: str) -> list[list[str]]:
    """The words of each command of a line, without assignments in front of them. Raises ValueError where quotes do not
    match."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="&|;")
    lexer.whitespace_split = True
    lexer.commenters = ""
    commands: list[list[str]] = [[]]
    for word in lexer:
        if _TOLD_APART.fullmatch(word):
            commands.append([])
        elif commands[-1] or not _ASSIGNMENT.fullmatch(word):
            commands[-1].append(word)
    return [command for command in commands if command]


def laggard_words(words: list[str]) -> list[str] | None:
    """The words behind `laggard` of a command that runs it, or has a launcher or kubectl run it; else None."""
    for place, (word, after) in enumerate(zip(words, words[1:], strict=False)):
        is_plugin = (
            place > 0 and words[place - 1] == "kubectl"
        )  # deploy/kubernetes/kubectl-laggard has words of its own
        if word.rpartition("/")[2] == "laggard" and after in NAMES and not is_plugin:
            return words_now(words[place + 1 :])
    return None


def _blocks(lines: list[str]) -> Iterator[tuple[str, int, list[str]]]:
    """The blocks that may hold commands: which kind, the number of the first line, the lines."""
    at = 0
    while at < len(lines):
        fence = _FENCE.match(lines[at].lstrip())
        begin = at
        if fence:
            at += 1
            while at < len(lines) and not lines[at].lstrip().startswith("```"):
                at += 1
            if fence[1] in _KINDS:
                yield _KINDS[fence[1]], begin + 2, lines[begin + 1 : at]
            at += 1
        elif (
            lines[at].startswith("    ")
            and not "".join(lines[max(0, at - 1) : at]).strip()
            and not _LIST.match(lines[at])
        ):
            while at < len(lines) and lines[at].startswith("    "):
                at += 1
            yield "indented", begin + 1, [line[4:] for line in lines[begin:at]]
        else:
            at += 1


def _joined(lines: list[str]) -> Iterator[tuple[int, str]]:
    """The lines without remarks and prompts, each with its place; one that goes on is joined with the next."""
    text, begin = "", 0
    for place, line in enumerate(lines):
        part = _REMARK.sub("", line).removeprefix("$ ").strip()
        begin = begin if text else place
        text = f"{text} {part}".strip()
        if text.endswith("\\"):
            text = text.removesuffix("\\")
        elif text and not text.endswith(("||", "&&", "|")):
            yield begin, text
            text = ""


def _is_data(text: str) -> bool:
    """Whether a block is YAML with keys and values."""
    with contextlib.suppress(yaml.YAMLError):
        value: Any = yaml.safe_load(text)
        return isinstance(value, dict)
    return False
