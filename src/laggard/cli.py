"""The command line. A subcommand's module is imported only when that subcommand runs, so that the gate starts fast."""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import importlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final, NoReturn, Protocol, cast

from laggard import __version__
from laggard.commands import COMMANDS, GROUPS, MOVED, PARTS, Command, examples
from laggard.kit import left
from laggard.kit.errors import EXIT_UNKNOWN, UsageError
from laggard.kit.flags import complete

_ALL = (*COMMANDS, *PARTS)

EXTRAS = {
    "optuna": "tune",
    "grafana_api": "grafana",
    "mcp": "mcp",
    "psycopg": "postgres",
    **dict.fromkeys(("markdown_it", "sqlalchemy", "starlette", "uvicorn"), "collector"),
}
"""The extra that installs a package, by package."""


class CommandModule(Protocol):
    """A subcommand's module: configure() adds its flags, main() runs it and returns the exit status."""

    def configure(self, parser: argparse.ArgumentParser) -> None: ...

    def main(self, arguments: argparse.Namespace) -> int: ...


class _Formatter(argparse.HelpFormatter):
    """Formats help for the terminal's width. argparse makes one for each flag, and would import shutil for it."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_columns() - 2)


@functools.cache
def _columns() -> int:
    try:
        return int(os.environ.get("COLUMNS", "")) or os.get_terminal_size().columns
    except (ValueError, OSError):
        return 80


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line that says what to do, with exit status 64, and whose help ends with
    examples."""

    def __init__(self, *args: Any, **named: Any) -> None:
        named.setdefault("formatter_class", _Formatter)
        super().__init__(*args, **named)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see `{self.prog} --help`")

    def format_help(self) -> str:
        shown = "".join(f"  {line}\n" for line in examples(self.prog.partition(" ")[2]))
        return super().format_help() + (f"\nexamples:\n{shown}" if shown else "")


class _Front(Parser):
    """The parser of all commands, whose help fits one screen."""

    def format_help(self) -> str:
        rows = (
            f"{'' if number else group:<9}{command.name:<13}{command.help}\n"
            for group, commands in GROUPS.items()
            for number, command in enumerate(commands)
        )
        last = "`laggard COMMAND --help` shows its flags and examples.\n"
        return f"usage: laggard COMMAND ...\n\n{''.join(rows)}\n{last}"


def main(argv: Sequence[str] | None = None) -> int:
    words = words_now(sys.argv[1:] if argv is None else argv)
    if argv is None and any(command.brief for command in COMMANDS if command.name == _command_name(words)):
        gc.disable()
    try:
        return _run(words)
    except UsageError as error:
        return _report_error(words, str(error), error.status)
    except BaseException as error:
        if _command_name(words) == "run" or isinstance(error, SystemExit):
            raise  # a training script ends as it would without laggard
        return _exit_status(error, words)


def _exit_status(error: BaseException, words: list[str]) -> int:
    if isinstance(error, KeyboardInterrupt):
        return 130
    if isinstance(error, BrokenPipeError):  # the reader of our output closed it, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    if os.environ.get("LAGGARD_DEBUG"):
        raise error
    if extra := _missing_extra(error):
        text = f"this needs packages of the extra `{extra}`: pip install 'laggard[{extra}]'"
    else:
        text = f"a defect in laggard: {type(error).__name__}: {error}; set LAGGARD_DEBUG=1 for the traceback"
    return _report_error(words, text, EXIT_UNKNOWN)


def _missing_extra(error: BaseException) -> str | None:
    """The extra that has the package for want of which a command ended."""
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    return EXTRAS.get((name or "").partition(".")[0])


def _run(words: list[str]) -> int:
    words = _launchers_word_behind_command(words)
    name = _command_name(words)
    if name in left.COMMANDS:
        _refuse_what_left(words)
    if name is not None and name == words[0]:
        _find(name)
    parser = _parser(name)
    try:
        arguments, rest = parser.parse_known_args(words)
    except UsageError:
        _refuse_what_left(words)
        raise
    if not arguments.command:
        parser.print_help(sys.stderr)
        raise UsageError("name a command")
    if rest:
        _refuse_what_left(words)
        raise UsageError(_unknown("argument", rest[0], _children(parser)[arguments.command]))
    module = _module(_find(arguments.command))
    with _output(arguments):
        return module.main(arguments)


@contextlib.contextmanager
def _output(arguments: argparse.Namespace) -> Iterator[None]:
    """Standard output goes nowhere where a command that would print an answer is to be quiet."""
    if not (getattr(arguments, "quiet", False) and hasattr(arguments, "format")):
        yield
        return
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def _refuse_what_left(words: Sequence[str]) -> None:
    """Raises UsageError if the words ask for what was a command or a flag once."""
    known = {**left.COMMANDS, **left.FLAGS}
    for name in (words[0], *(f"{words[0]} {word.partition('=')[0]}" for word in words[1:])):
        if name in known:
            raise UsageError(f"`laggard {name}` left: {known[name]}")


def _find(name: str) -> Command:
    """Raises UsageError where there is no such command."""
    found = next((command for command in _ALL if command.name == name), None)
    if found is None:
        raise UsageError(_unknown("command", name))
    return found


def _unknown(what: str, word: str, parser: Parser | None = None) -> str:
    """The line about a word that is no flag or part of `parser`, or no command, with the one that it may be meant
    for."""
    import difflib

    parts = [part.name.partition(" ") for part in PARTS]
    of_command = [part for name, _, part in parts if parser and parser.prog == f"laggard {name}"]
    known = [*parser._option_string_actions, *of_command] if parser else [command.name for command in COMMANDS]
    close = difflib.get_close_matches(word.partition("=")[0], known, 1)
    hint = f": did you mean {close[0]}?" if close else f"; see `{parser.prog if parser else 'laggard'} --help`"
    return f"unknown {what} {word!r}{hint}"


def _launchers_word_behind_command(words: list[str]) -> list[str]:
    """`--local_rank=0 run SCRIPT` is `run SCRIPT --local_rank=0`: the launchers of DeepSpeed and torch.distributed put
    that word behind the first word of their own, which is `laggard`."""
    if words[1:2] == ["run"] and words[0].startswith(("--local_rank=", "--local-rank=")):
        return ["run", f"--launchers-word={words[0]}", *words[2:]]
    return words


def words_now(words: Sequence[str]) -> list[str]:
    """The words with the command as one: `agent ... --reader ...` is `"agent --reader" ...`, and `tune report ...` is
    `"tune report" ...`. An option that names a part may stand anywhere, a word right behind the command. Who writes a
    name that a command had before is told of the new one."""
    if words and (new := MOVED.get(words[0])):
        print(f"laggard: `laggard {words[0]}` is `laggard {new}` now", file=sys.stderr)
        words = [*new.split(), *words[1:]]
    parts = {part.name for part in PARTS}
    for at, word in enumerate(words):
        if f"{words[0]} {word}" in parts and (at == 1 or word.startswith("--")):
            return [f"{words[0]} {word}", *words[1:at], *words[at + 1 :]]
    return list(words)


def _command_name(words: Sequence[str]) -> str | None:
    return next((word for word in words if not word.startswith("-")), None)


def _module(command: Command) -> CommandModule:
    return cast(CommandModule, importlib.import_module(command.module))


def _parser(command_name: str | None) -> Parser:
    """Returns the parser of all commands; of the command `command_name` alone, with its flags, where there is one."""
    parser = _Front(prog="laggard", description="Finds the slow rank, says why, and says what to change.")
    parser.add_argument("--version", action="version", version=f"laggard {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser, prog="laggard")
    for command in [each for each in _ALL if each.name == command_name] or _ALL:
        listed: dict[str, Any] = {"help": command.help} if command in COMMANDS else {}
        child = commands.add_parser(command.name, description=command.help, allow_abbrev=False, **listed)
        if command.name == command_name:
            _configure(child, command)
    return parser


def _configure(parser: Parser, command: Command) -> None:
    _module(command).configure(parser)
    complete(parser)
    _list_parts(parser, {part.name.partition(" ")[2]: part for part in PARTS if part.name.split()[0] == command.name})


def _list_parts(parser: Parser, parts: dict[str, Command]) -> None:
    """Lists in a command's help the parts that words_now() takes before argparse sees them."""
    flags = [word for word in parts if word.startswith("--")]
    if flags:
        group = parser.add_argument_group("instead, with flags of its own (`laggard agent --reader --help`)")
        for flag in flags:
            group.add_argument(flag, action="store_true", help=parts[flag].help)
    elif parts:
        told = "; ".join(f"{word}: {part.help}" for word, part in parts.items())
        for place in [each for each in parser._actions if each.choices and not each.option_strings]:
            place.choices, place.help = (*(place.choices or ()), *parts), f"{place.help}; {told}"
            return
        parser.add_argument_group("instead, with flags of its own", told)


def _children(parser: Parser) -> dict[str, Parser]:
    return next(dict(each.choices) for each in parser._actions if isinstance(each, argparse._SubParsersAction))


def whole_parser(only_installed: bool = False) -> Parser:
    """Returns the parser of all commands with all their flags, for manual pages and completion. It imports every
    command's module, and so needs the extras `all`; `only_installed`: commands whose extra is missing get no flags."""
    parser = _parser(None)
    for name, child in _children(parser).items():
        try:
            _configure(child, _find(name))
        except ModuleNotFoundError as error:
            if not (only_installed and _missing_extra(error)):
                raise
    return parser


def _report_error(words: Sequence[str], text: str, status: int) -> int:
    from laggard.kit.words import printable_line

    text = printable_line(text)  # it may cite a file or an argument, which may have any character
    print(_in_rows(f"laggard: {text}"), file=sys.stderr)
    if _wants_json(words):
        import json

        print(json.dumps({"schema": "laggard.error/1", "error": text, "exit_status": status}))
    return status


def _in_rows(text: str) -> str:
    if not sys.stderr.isatty():
        return text
    from laggard.kit.parts import wrapped_for

    return wrapped_for(sys.stderr, text)


_JSON: Final = re.compile(r"^(--format[=\n]|--output[=\n]|-o[=\n]?)json$|^--json$", re.MULTILINE)


def _wants_json(words: Sequence[str]) -> bool:
    """Returns whether the format is json. Reads the words themselves, because the parser may be what failed."""
    return _JSON.search("\n".join(words)) is not None
