"""`laggard ring`: short all-reduces among GPUs and nodes, timed and checked."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping
from typing import Final

from laggard import wire
from laggard.kit.errors import EXIT_USAGE, UsageError
from laggard.kit.flags import duration
from laggard.kit.terminal import show
from laggard.rings import membership
from laggard.rings.describe import render_nccl_tests, ring_parts
from laggard.rings.document import Ring
from laggard.rings.member import MemberSettings
from laggard.rings.options import ELEMENT_BYTES, OPS, RingOptions, parse_size
from laggard.rings.place import add_meeting, find_place, meeting_of, read_tokens
from laggard.rings.run import run_node

_MAX_BYTES: Final = 1 << 20
_OWN: Final = ("LAGGARD_", "PYTHON", "TORCHELASTIC_", "SLURM_", "PMI", "OMPI_", "VIRTUAL_ENV")
"""Prefixes of what says who this process is and which Python it runs, and nothing of how NCCL is to work."""
_OWN_NAMES: Final = frozenset(
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
)


def read_job_environment(source: str) -> dict[str, str]:
    """Returns the variables of the process whose id `source` is, or of the file (`env > FILE`, or a copy of
    /proc/PID/environ). Raises UsageError."""
    path = f"/proc/{source}/environ" if source.isdecimal() else source
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except PermissionError:
        raise UsageError(f"--env-from {source}: only its user and root may read {path}") from None
    except OSError as error:
        raise UsageError(f"--env-from {source}: {path}: {error.strerror}") from None
    variables = parse_environment(data[:_MAX_BYTES])
    if len(data) > _MAX_BYTES or not variables:
        raise UsageError(f"--env-from {source}: {path} holds no environment")
    return variables


def parse_environment(data: bytes) -> dict[str, str]:
    """Reads NAME=VALUE, ended by NUL where there is one, else by line. Pure."""
    entries = data.decode(errors="surrogateescape").split("\0" if b"\0" in data else "\n")
    pairs = (entry.partition("=") for entry in entries)
    return {name: value for name, sign, value in pairs if sign and name.replace("_", "a").isalnum()}


def as_the_job(own: Mapping[str, str], job: Mapping[str, str]) -> dict[str, str]:
    """Returns the job's environment, with what says who this process is from its `own`. Pure."""
    kept = {name: value for name, value in own.items() if _is_own(name)}
    return {**{name: value for name, value in job.items() if not _is_own(name)}, **kept}


def _is_own(name: str) -> bool:
    return name in _OWN_NAMES or name.startswith(_OWN)


_MAX_LOCAL_RANKS: Final = 64
_MAX_SWEEP_BYTES: Final = 1 << 36
_SWEEP_SECONDS: Final = 20.0
_PAIRS_SECONDS: Final = 120.0


def configure(parser: argparse.ArgumentParser) -> None:
    place = parser.add_argument_group(
        "several nodes", "Start the same command on each, or under torchrun or srun, which need none of these."
    )
    add_meeting(place)
    _add_measurement(parser)
    parser.add_argument(
        "--format",
        choices=("text", "json", "nccl-tests"),
        default="text",
        help="text for people, one JSON document, or the columns of nccl-tests (default: text)",
    )


def _add_measurement(parser: argparse.ArgumentParser) -> None:
    defaults = RingOptions()
    parser.add_argument(
        "--op", default="all_reduce", metavar="OP,...", help=f"of {', '.join(OPS)} (default: all_reduce)"
    )
    parser.add_argument("--min-bytes", default="1K", metavar="SIZE", help="the smallest message (default: 1K)")
    parser.add_argument("--max-bytes", default="64M", metavar="SIZE", help="the largest message (default: 64M)")
    parser.add_argument(
        "--factor", type=int, default=defaults.factor, metavar="F", help="from one size to the next (default: 4)"
    )
    parser.add_argument(
        "--seconds",
        type=duration(0.1, 86400),
        metavar="TIME",
        help="how long to measure (default: 20s, and 120s with --pairs)",
    )
    parser.add_argument("--pairs", action="store_true", help="measure nodes two by two, and name the slow node or link")
    parser.add_argument(
        "--suspect",
        metavar="NODE",
        default="",
        help="with --pairs: confirm or acquit this node, by pairs with each of the others, in both places",
    )
    parser.add_argument(
        "--pair-bytes", default="0", metavar="SIZE", help="the message of a pair (default: 64M on GPUs, 1M on CPUs)"
    )
    parser.add_argument(
        "--deadline",
        type=duration(10, 7 * 86400),
        metavar="TIME",
        help="when to end, whatever happens (default: what it should take, twice)",
    )
    parser.add_argument(
        "--device", choices=("auto", "cuda", "cpu"), default="auto", help="NCCL on GPUs or gloo on CPUs (default: auto)"
    )
    parser.add_argument(
        "--env-from",
        metavar="PID|FILE",
        help="use the environment of this process, or of `env > FILE`: the job's NCCL settings (default: its own)",
    )
    parser.add_argument(
        "--local-ranks", type=int, metavar="K", help="ranks on this node (default: its GPUs; on CPUs 1, alone 2)"
    )


def main(arguments: argparse.Namespace) -> int:
    began = time.monotonic()
    options, meeting = _options(arguments), meeting_of(arguments)
    place = find_place(meeting) or membership.alone()
    _check_local_ranks(arguments.local_ranks)
    deadline = arguments.deadline or meeting.join_seconds + 2 * options.seconds + 60.0
    settings = MemberSettings(
        place=place,
        options=options,
        tokens=read_tokens(meeting.token_file),
        device=arguments.device,
        local_ranks=arguments.local_ranks,
        environ=_environment(arguments.env_from),
        deadline=began + deadline,
    )
    ended = run_node(settings, meeting.join_seconds)
    if ended.status == EXIT_USAGE:
        raise UsageError(ended.text)
    if ended.ring is not None:
        _print(ended.ring, arguments.format)
    elif ended.status:
        print(f"laggard: {ended.text}", file=sys.stderr)
    return ended.status


def _print(ring: Ring, form: str) -> None:
    if form == "text":
        show(ring_parts(ring))
    else:
        sys.stdout.write(render_nccl_tests(ring) if form == "nccl-tests" else wire.encode(ring).decode() + "\n")
        sys.stdout.flush()


def _options(arguments: argparse.Namespace) -> RingOptions:
    ops = tuple(dict.fromkeys(arguments.op.split(",")))
    wrong = [op for op in ops if op not in OPS]
    if wrong:
        raise UsageError(f"--op {wrong[0]!r} is none of {', '.join(OPS)}")
    first, last = _size("--min-bytes", arguments.min_bytes), _size("--max-bytes", arguments.max_bytes)
    if first > last:
        raise UsageError(f"--min-bytes {arguments.min_bytes} is more than --max-bytes {arguments.max_bytes}")
    if arguments.factor < 2:
        raise UsageError(f"--factor {arguments.factor}: sizes grow by 2 or more")
    seconds = (
        (_PAIRS_SECONDS if arguments.pairs else _SWEEP_SECONDS) if arguments.seconds is None else arguments.seconds
    )
    if arguments.suspect and not arguments.pairs:
        raise UsageError("--suspect is judged by pairs: add --pairs")
    pair_bytes = 0 if arguments.pair_bytes == "0" else _size("--pair-bytes", arguments.pair_bytes)
    return RingOptions(
        ops=ops,
        min_bytes=first,
        max_bytes=last,
        factor=arguments.factor,
        seconds=seconds,
        pairs=arguments.pairs,
        pair_bytes=pair_bytes,
        suspect=arguments.suspect,
    )


def _size(flag: str, text: str) -> int:
    try:
        size_bytes = parse_size(text)
    except ValueError as error:
        raise UsageError(f"{flag} {error}") from None
    if not ELEMENT_BYTES <= size_bytes <= _MAX_SWEEP_BYTES:
        raise UsageError(f"{flag} {text} is not between 4 bytes and 64G")
    return size_bytes


def _environment(source: str | None) -> dict[str, str]:
    return dict(os.environ) if source is None else as_the_job(os.environ, read_job_environment(source))


def _check_local_ranks(local_ranks: int | None) -> None:
    """Raises UsageError."""
    if local_ranks is not None and not 1 <= local_ranks <= _MAX_LOCAL_RANKS:
        raise UsageError(f"--local-ranks {local_ranks} is not between 1 and {_MAX_LOCAL_RANKS}")
