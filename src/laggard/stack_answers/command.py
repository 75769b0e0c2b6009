"""`laggard stacks JOB`: where in the code the ranks of a job are, by stacks that they take of themselves."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import ExitStack
from typing import Final

from laggard import wire
from laggard.agent.ranks.reader import RankFiles
from laggard.collector_client import COLLECTOR_HELP
from laggard.environment import node_name, rank_dir
from laggard.errors import UsageError
from laggard.secret_files import read_token_file
from laggard.stack_answers.answer import Answers, answer_lines
from laggard.stack_answers.collector import ask_collector
from laggard.stack_answers.node import Gathered, ask_node
from laggard.stacks.ask import MAX_SAMPLES, MAX_SECONDS, SAMPLES, SECONDS
from laggard.stacks.sampled import SUFFIX, write
from laggard.terminal.output import show
from laggard.terminal.parts import Line
from laggard.terminal.progress import Bar
from laggard.text.users import user_text
from laggard.text.words import printable_line
from laggard.wire.stacks import MAX_RANKS, StacksDocument, rank_stacks

_MIN_SECONDS: Final = 0.1
_MAX_RANK: Final = 1 << 31


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", nargs="?", metavar="JOB", help="its name, or UID:NAME (default: the one that runs)")
    parser.add_argument("--ranks", type=_ranks, default=(), metavar="LIST", help="such as 0,3-5 (default: all)")
    parser.add_argument("--seconds", type=_seconds, default=SECONDS, metavar="S", help="for so long (default: 10)")
    parser.add_argument("--samples", type=_samples, default=SAMPLES, metavar="N", help="so many (default: 200)")
    parser.add_argument("--collector", metavar="URL", help=f"for all nodes: {COLLECTOR_HELP.partition(' (')[0]}")
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="with --collector: its stacks_token_file's secret; without, what the collector holds is shown",
    )
    parser.add_argument("--rank-dir", metavar="DIR", help="without --collector: where ranks write their files")
    parser.add_argument("--save", metavar="DIR", help="keep each rank's stacks there, as rank-N.stacks")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json: one document")


def main(arguments: argparse.Namespace) -> int:
    """Returns 0 where each rank has answered, 2 where some or all have not. Raises UsageError."""
    gathered = _gather(arguments)
    if arguments.save:
        _save(arguments.save, gathered)
    if arguments.format == "json":
        sys.stdout.write(wire.encode(_document(gathered)).decode() + "\n")
    else:
        job = f"{gathered.job_id} of {user_text(gathered.owner)}"
        show([Line(line) for line in answer_lines(Answers(job, gathered.sampled, gathered.missing))])
    sys.stdout.flush()
    return 0 if gathered.sampled and not gathered.missing else 2


def _gather(arguments: argparse.Namespace) -> Gathered:
    """Raises UsageError."""
    if arguments.token_file and not arguments.collector:
        raise UsageError("--token-file is for a collector: name it with --collector")
    if arguments.rank_dir and arguments.collector:
        raise UsageError("--rank-dir is for this machine: leave it out, or --collector")
    asked = arguments.job, arguments.ranks, arguments.samples, arguments.seconds
    with ExitStack() as stack:
        bar = stack.enter_context(Bar())
        if arguments.collector:
            token = read_token_file(arguments.token_file, "--token-file")[0] if arguments.token_file else ""
            return ask_collector(arguments.collector, token, *asked, bar.show)
        if arguments.rank_dir is not None and not os.path.isdir(arguments.rank_dir):
            what = "is no directory" if os.path.exists(arguments.rank_dir) else "does not exist"
            named = printable_line(repr(arguments.rank_dir), 200)
            raise UsageError(f"--rank-dir {named} {what}: give the one that the ranks have (LAGGARD_RANK_DIR)")
        files = RankFiles(arguments.rank_dir or rank_dir(os.environ), node_name(os.environ))
        return ask_node(files, *asked, bar.show)


def _document(gathered: Gathered) -> StacksDocument:
    ranks = tuple(rank_stacks(each) for _, each in sorted(gathered.sampled.items()))
    return StacksDocument(gathered.owner, gathered.job_id, ranks, gathered.missing)


def _save(folder: str, gathered: Gathered) -> None:
    """Raises UsageError."""
    try:
        os.makedirs(folder, exist_ok=True)
        for rank, each in gathered.sampled.items():
            write(os.path.join(folder, f"rank-{rank}{SUFFIX}"), each)
    except OSError as error:
        raise UsageError(f"cannot write into {folder}: {error.strerror}; choose another place with --save") from None


def _ranks(text: str) -> tuple[int, ...]:
    found: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        ends = (first, last or first)
        if not all(end.isascii() and end.isdecimal() and len(end) < 11 for end in ends) or (dash and not last):
            raise argparse.ArgumentTypeError(f"{text[:80]!r} is no list of ranks: write 0,3-5")
        low, high = map(int, ends)
        if low > high or high >= _MAX_RANK or len(found) + high - low >= MAX_RANKS:
            raise argparse.ArgumentTypeError(f"{text[:80]!r}: up to {MAX_RANKS} ranks, each range from low to high")
        found.update(dict.fromkeys(range(low, high + 1)))
    return tuple(found)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not _MIN_SECONDS <= seconds <= MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r}: give {_MIN_SECONDS} to {MAX_SECONDS:g} seconds")
    return seconds


def _samples(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= MAX_SAMPLES and len(text) < 9):
        raise argparse.ArgumentTypeError(f"{text!r}: give 1 to {MAX_SAMPLES} samples")
    return int(text)
