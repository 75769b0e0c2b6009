"""The command line. A subcommand's module is imported only when that subcommand runs, so that the gate starts fast."""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn, Protocol, cast

from laggard import __version__
from laggard.kit import left
from laggard.kit.errors import EXIT_USAGE, UsageError


class Command(NamedTuple):
    name: str
    module: str
    help: str
    brief: bool = False
    """It runs before every job and ends soon: the garbage collector, which looks at all that is imported, stays off."""


COMMANDS = (
    Command("demo", "laggard.demo.main", "slow one rank of a real DeepSpeed job on this machine, and name it"),
    Command(
        "healthcheck",
        "laggard.gate.command",
        "check this node: the gate for prologs, epilogs and timers",
        brief=True,
    ),
    Command("record", "laggard.probes.record.command", "copy what the probes read here into a folder that replays it"),
    Command("agent", "laggard.agent.main", "run the daemon of a node: it serves probes, ranks and metrics"),
    Command("collector", "laggard.collector.main", "run the daemon that scrapes all agents and names the culprit"),
    Command("run", "laggard.trainer_hooks.run", "run a training script with the hooks attached and no line changed"),
    Command(
        "diagnose",
        "laggard.diagnose.command",
        "find what is wrong in files: jobs' output, NCCL, kernel, lspci",
    ),
    Command("findings", "laggard.catalogue.command", "list or explain the codes of findings"),
    Command("metrics", "laggard.catalogue.metrics_command", "list the metrics of agents and collector"),
    Command("ring", "laggard.rings.command", "time and check all-reduces among GPUs and nodes; find the slow one"),
    Command("dashboards", "laggard.dashboards", "write Grafana's dashboards to files, or push them to Grafana"),
    Command(
        "locate",
        "laggard.collector.locate_command.command",
        "name the rank, link or host that is slow or hung, and why",
    ),
    Command("stacks", "laggard.stack_answers.command", "show where in the code the ranks of a job are, or stand still"),
    Command("top", "laggard.collector.top", "watch the verdict, the ranks and the nodes in the terminal"),
    Command("incidents", "laggard.collector.incidents_command", "list the culprits that there are and were, over time"),
    Command("exclude", "laggard.suspects.exclude_command", "list the nodes that the next job is to leave out"),
    Command("confirm", "laggard.suspects.confirm_command", "measure a suspect node against peers: slow, or acquitted"),
    Command("mcp", "laggard.assistant", "answer an assistant's questions to a collector, over standard input (MCP)"),
    Command("recommend", "laggard.recommend.command", "what to change, and what it should gain"),
    Command("report", "laggard.reports.command", "what a table of measured runs says: best, ties, outliers"),
    Command("kubernetes", "laggard.kubernetes.command", "run the controller that tells Kubernetes which nodes are fit"),
    Command("tune", "laggard.tune.command", "measure configurations of NCCL and DeepSpeed: fast, and right"),
    Command("tuner", "laggard.tuner", "NCCL's tuner tables: compiled from measurements, checked, simulated"),
)

AGENT_PARTS = (
    Command("agent --reader", "laggard.agent.reader.server", "read, for an agent without privileges, what takes some"),
    Command("agent --idle-rings", "laggard.agent.idle_rings.command", "measure this node while it is idle: a daemon"),
    Command("agent --kubernetes-job", "laggard.kubernetes.job", "run a command as a Job of Kubernetes"),
)
"""The options of `laggard agent` that run something else: with its own flags, and without the agent's imports."""

_ALL = (*COMMANDS, *AGENT_PARTS)

EXTRAS = {
    "numpy": "locate",
    "optuna": "tune",
    "grafana_api": "grafana",
    "mcp": "mcp",
    "psycopg": "postgres",
    **dict.fromkeys(("h11", "httpx", "starlette", "uvicorn"), "collector"),
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
    """An argument parser whose errors are one line that says what to do, with exit status 64."""

    def __init__(self, *args: Any, **named: Any) -> None:
        named.setdefault("formatter_class", _Formatter)
        super().__init__(*args, **named)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see `{self.prog} --help`")


def main(argv: Sequence[str] | None = None) -> int:
    words = with_part_as_command(sys.argv[1:] if argv is None else argv)
    if argv is None and any(command.brief for command in COMMANDS if command.name == _command_name(words)):
        gc.disable()
    try:
        return _run(words)
    except UsageError as error:
        return _report_error(words, str(error), EXIT_USAGE)
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
        return _report_error(words, text, EXIT_USAGE)
    text = f"a defect in laggard: {type(error).__name__}: {error}; set LAGGARD_DEBUG=1 for the traceback"
    return _report_error(words, text, 2)


def _missing_extra(error: BaseException) -> str | None:
    """The extra that has the package for want of which a command ended."""
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    return EXTRAS.get((name or "").partition(".")[0])


def _run(words: list[str]) -> int:
    words = _launchers_word_behind_command(words)
    name = _command_name(words)
    if name in left.COMMANDS:
        _refuse_what_left(words)
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
        raise UsageError(f"unknown argument {rest[0]!r}; see `laggard {arguments.command} --help`")
    module = cast(CommandModule, importlib.import_module(_module_name(arguments.command)))
    return module.main(arguments)


def _refuse_what_left(words: Sequence[str]) -> None:
    """Raises UsageError if the words ask for what was a command or a flag once."""
    known = {**left.COMMANDS, **left.FLAGS}
    for name in (words[0], *(f"{words[0]} {word.partition('=')[0]}" for word in words[1:])):
        if name in known:
            raise UsageError(f"`laggard {name}` left: {known[name]}")


def _launchers_word_behind_command(words: list[str]) -> list[str]:
    """`--local_rank=0 run SCRIPT` is `run SCRIPT --local_rank=0`: the launchers of DeepSpeed and torch.distributed put
    that word behind the first word of their own, which is `laggard`."""
    if words[1:2] == ["run"] and words[0].startswith(("--local_rank=", "--local-rank=")):
        return ["run", f"--launchers-word={words[0]}", *words[2:]]
    return words


def with_part_as_command(words: Sequence[str]) -> list[str]:
    """`agent ... --reader ...` is `"agent --reader" ...`: the first option that names a part of the agent counts."""
    parts = {part.name for part in AGENT_PARTS}
    for at, word in enumerate(words):
        if words[0] == "agent" and f"agent {word}" in parts:
            return [f"agent {word}", *words[1:at], *words[at + 1 :]]
    return list(words)


def _command_name(words: Sequence[str]) -> str | None:
    return next((word for word in words if not word.startswith("-")), None)


def _module_name(command_name: str) -> str:
    return next(command.module for command in _ALL if command.name == command_name)


def _parser(command_name: str | None) -> Parser:
    """Returns the parser of all commands. Only the command `command_name` gets its flags."""
    parser = Parser(prog="laggard", description="Finds the slow rank, says why, and says what to change.")
    parser.add_argument("--version", action="version", version=f"laggard {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser, prog="laggard")
    for command in _ALL:
        listed: dict[str, Any] = {"help": command.help} if command in COMMANDS else {}
        child = commands.add_parser(command.name, description=command.help, allow_abbrev=False, **listed)
        if command.name == command_name:
            cast(CommandModule, importlib.import_module(command.module)).configure(child)
    if command_name in ("agent", None):
        _list_parts(commands.choices["agent"])
    return parser


def _list_parts(agent: Parser) -> None:
    """Lists in the agent's help the options that with_part_as_command() takes before argparse sees them."""
    group = agent.add_argument_group("instead of the agent, with flags of its own (`laggard agent --reader --help`)")
    for part in AGENT_PARTS:
        group.add_argument(part.name.partition(" ")[2], action="store_true", help=part.help)


def whole_parser() -> Parser:
    """Returns the parser of all commands with all their flags, for manual pages and completion. It imports every
    command's module, and so needs the extras `all`."""
    parser = _parser(None)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in _ALL:
                child = action.choices[command.name]
                cast(CommandModule, importlib.import_module(command.module)).configure(child)
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


def _wants_json(words: Sequence[str]) -> bool:
    """Returns whether --format is json. Reads the words themselves, because the parser may be what failed."""
    return "--format=json" in words or any(pair == ("--format", "json") for pair in zip(words, words[1:], strict=False))
