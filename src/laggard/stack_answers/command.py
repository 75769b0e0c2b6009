"""`laggard stacks JOB`: where in the code the ranks of a job are, by stacks that they take of themselves. A collector
is asked, or this machine's ranks."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final, TypeVar

from laggard import wire
from laggard.agent.ranks.reader import RankFiles
from laggard.kit.address import without_login
from laggard.kit.collector_client import answer, ask
from laggard.kit.environment import node_name, rank_dir
from laggard.kit.errors import CannotTell, UsageError
from laggard.kit.flags import add_collector, duration
from laggard.kit.parts import Line
from laggard.kit.progress import Bar
from laggard.kit.secret_files import read_token_file
from laggard.kit.terminal import show
from laggard.kit.users import user_text
from laggard.kit.words import printable_line
from laggard.stack_answers.answer import Answers, answer_lines
from laggard.stack_answers.node import Gathered, Told, ask_node
from laggard.stacks.ask import MAX_SAMPLES, MAX_SECONDS, SAMPLES, SECONDS
from laggard.stacks.sampled import SUFFIX, Sampled, SampledError, write
from laggard.wire import stacks
from laggard.wire.signing import STACKS, signed

Document = TypeVar("Document", stacks.StacksDocument, stacks.StacksAsked)

WAIT_SECONDS: Final = 28.0
"""The time for which a collector looks for answers, beyond the samples themselves."""

_LOOK_SECONDS: Final = 2.0


def ask_collector(
    url: str, token: str, name: str | None, ranks: Sequence[int], samples: int, seconds: float, told: Told
) -> Gathered:
    """The stacks that the collector holds of the ranks, all where none is named; with a token, once they have
    answered anew. Raises UsageError."""
    if not token:
        return _gathered(_held(url, name, ranks), {})
    asked = stacks.StacksAsk(time.time(), secrets.token_hex(16), name or "", tuple(ranks), samples, seconds)
    reply = _decoded(ask(url, "stacks/ask", wire.encode(signed(token, STACKS, asked))), stacks.StacksAsked, url)
    refused = {it.rank: it.reason for it in reply.missing}
    if not reply.ranks:
        return Gathered(
            reply.owner, reply.job_id, {}, tuple(stacks.MissingStacks(*it) for it in sorted(refused.items()))
        )
    return _waited(url, reply, refused, told)


def _waited(url: str, reply: stacks.StacksAsked, refused: dict[int, str], told: Told) -> Gathered:
    key, idents, began = f"{reply.owner}:{reply.job_id}", set(reply.idents), time.monotonic()
    while True:
        waited = time.monotonic() - began
        told(min(1.0, waited / reply.seconds), f"{len(reply.ranks)} ranks take their stacks")
        time.sleep(_LOOK_SECONDS if waited > reply.seconds else min(_LOOK_SECONDS, reply.seconds))
        if waited < reply.seconds:
            continue
        held = _held(url, key, reply.ranks)
        answered = sum(each.ask in idents for each in held.ranks)
        if answered == len(reply.ranks) or waited > reply.seconds + WAIT_SECONDS:
            return _gathered(held, refused, idents)


def _gathered(held: stacks.StacksDocument, refused: dict[int, str], idents: set[str] | None = None) -> Gathered:
    sampled: dict[int, Sampled] = {}
    missing = {it.rank: it.reason for it in held.missing} | refused
    kernel = {it.rank: it.kernel for it in held.missing}
    for each in held.ranks:
        try:
            found = stacks.sampled_of(each)
        except SampledError as error:
            missing[each.rank] = str(error)
            continue
        if idents is not None and found.why == "asked" and found.ask not in idents:
            missing[each.rank] = "it has not answered this ask; an older answer is left out"
        else:
            sampled[each.rank] = found
    without = (stacks.MissingStacks(rank, reason, kernel.get(rank, "")) for rank, reason in sorted(missing.items()))
    return Gathered(held.owner, held.job_id, sampled, tuple(without))


def _held(url: str, name: str | None, ranks: Sequence[int]) -> stacks.StacksDocument:
    query = {"job": name} if name else {}
    if ranks:
        query["ranks"] = ",".join(map(str, ranks))
    with answer(url, "stacks", query) as found:
        return _decoded(found.read(), stacks.StacksDocument, url)


def _decoded(body: bytes, kind: type[Document], url: str) -> Document:
    try:
        return wire.decode(body, kind)
    except wire.WireError as error:
        raise CannotTell(f"the collector at {without_login(url)} is of another version: {error}") from None


_MIN_SECONDS: Final = 0.1
_MAX_RANK: Final = 1 << 31


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", nargs="?", metavar="JOB", help="its name, or UID:NAME (default: the one that runs)")
    parser.add_argument("--ranks", type=_ranks, default=(), metavar="LIST", help="such as 0,3-5 (default: all)")
    parser.add_argument(
        "--seconds",
        type=duration(_MIN_SECONDS, MAX_SECONDS),
        default=SECONDS,
        metavar="TIME",
        help="for so long (default: 10s)",
    )
    parser.add_argument("--samples", type=_samples, default=SAMPLES, metavar="N", help="so many (default: 200)")
    add_collector(parser, "for all nodes: the collector, as HOST:PORT or URL", None)
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


def _document(gathered: Gathered) -> stacks.StacksDocument:
    ranks = tuple(stacks.rank_stacks(each) for _, each in sorted(gathered.sampled.items()))
    return stacks.StacksDocument(gathered.owner, gathered.job_id, ranks, gathered.missing)


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
        if low > high or high >= _MAX_RANK or len(found) + high - low >= stacks.MAX_RANKS:
            raise argparse.ArgumentTypeError(
                f"{text[:80]!r}: up to {stacks.MAX_RANKS} ranks, each range from low to high"
            )
        found.update(dict.fromkeys(range(low, high + 1)))
    return tuple(found)


def _samples(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= MAX_SAMPLES and len(text) < 9):
        raise argparse.ArgumentTypeError(f"{text!r}: give 1 to {MAX_SAMPLES} samples")
    return int(text)
