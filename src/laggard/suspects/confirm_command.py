"""`laggard confirm NODE`: a suspect is measured in the places of good peers, and confirmed or acquitted. The collector
keeps what came of it, by which `laggard exclude` goes."""

from __future__ import annotations

import argparse
import os
import pwd
import shlex
import shutil
import sys
import time
from typing import Final, NamedTuple

from laggard import wire
from laggard.kit.address import expand_hosts, without_login
from laggard.kit.collector_client import answer
from laggard.kit.errors import CannotTell, UsageError
from laggard.kit.flags import add_collector, duration
from laggard.kit.parts import Line
from laggard.kit.secret_files import read_token_file
from laggard.kit.terminal import show
from laggard.kit.words import counted, joined, printable_line
from laggard.model import EXIT_CODES, Verdict
from laggard.rings.describe import suspect_text
from laggard.rings.document import Ring
from laggard.suspects.measurement import (
    MAX_RING_PEERS,
    MIN_RING_PEERS,
    NotMeasured,
    RingJob,
    SlurmNode,
    choose_nodes,
    confirmation_of,
    good_peers,
    jobs_on,
    measure,
    ring_in,
    slurm_nodes,
    tell,
)
from laggard.suspects.scheduler import KnownNames, SchedulerAway, program
from laggard.wire.exclusion import MAX_SECONDS, ExclusionsDocument, SuspectDocument
from laggard.wire.nodes import NodeRow, NodesDocument

TOKEN_FILE: Final = "/etc/laggard/confirm-token"
_AT_ONCE_SECONDS: Final = 60.0
"""The time that SLURM has to start the measurement where the nodes are free."""
_MAX_RING_BYTES: Final = 4 << 20
_BOUNDED: Final = duration(10, 86400)
_STATUS: Final = {"acquitted": Verdict.OK, "confirmed": Verdict.FAIL, "unknown": Verdict.UNKNOWN}


class _Fleet(NamedTuple):
    """What the collector knows. `suspects`: the nodes that the next job is to leave out."""

    rows: tuple[NodeRow, ...]
    suspects: frozenset[str]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", metavar="NODE", help="the suspect, as its agent names it")
    add_collector(parser)
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        default=TOKEN_FILE,
        help=f"the secret of the collector's confirm_token_file, for it to keep the result (default: {TOKEN_FILE})",
    )
    parser.add_argument("--only-measure", action="store_true", help="say what came of it, and have nothing kept")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json: one document")
    parser.add_argument(
        "--ring",
        metavar="FILE",
        help="the document of a `laggard ring --pairs --suspect NODE --format json` that has been run (-: standard "
        "input)",
    )
    group = parser.add_argument_group("with SLURM", "The measurement is a job of a few minutes on NODE and its peers.")
    group.add_argument("--peers", metavar="LIST", help="n7,n9 or n[1-3] (default: free ones that pass their checks)")
    group.add_argument(
        "--wait",
        type=duration(1, MAX_SECONDS),
        metavar="TIME",
        help="wait so long for a node that a job holds: 90m, 12h",
    )
    group.add_argument("--partition", metavar="NAME", help="where to run (default: one that has NODE and free peers)")
    group.add_argument(
        "--seconds", type=_BOUNDED, default=120.0, metavar="TIME", help="measure so long (default: 120s)"
    )
    group.add_argument("--deadline", type=_BOUNDED, default=360.0, metavar="TIME", help="end by then (default: 6m)")
    group.add_argument("--ring-token-file", metavar="FILE", help="on the nodes: the ring's secret (default: none)")
    group.add_argument("--laggard", metavar="WORDS", help=argparse.SUPPRESS)  # what starts it there
    for name in ("srun", "sinfo", "squeue"):
        group.add_argument(f"--{name}", metavar="PATH", help=argparse.SUPPRESS)  # else the one in PATH


def main(arguments: argparse.Namespace) -> int:
    """0: acquitted, 1: confirmed, 2: not measured, or it cannot be told. Raises UsageError."""
    token = "" if arguments.only_measure else read_token_file(arguments.token_file, "--token-file")[0]
    fleet = _fleet(arguments.collector)
    node = _known_name(arguments.node, fleet)
    try:
        ring = _read_ring(arguments.ring) if arguments.ring else _measured_by_slurm(arguments, node, fleet)
    except (NotMeasured, SchedulerAway) as error:
        return _say(arguments.format, SuspectDocument(node, "unknown", printable_line(str(error), 600)), None)
    return _say(arguments.format, _judged(arguments, ring, node, token), ring)


def _judged(arguments: argparse.Namespace, ring: Ring, node: str, token: str) -> SuspectDocument:
    """Raises UsageError."""
    suspect = ring.suspect
    if suspect is None:
        return SuspectDocument(node, "unknown", printable_line(ring.unknown or "the ring judged no suspect", 600))
    if KnownNames((suspect.node,)).find(node) is None and KnownNames((node,)).find(suspect.node) is None:
        raise UsageError(f"that ring's suspect was {printable_line(suspect.node, 80)}, and not {node}")
    found = confirmation_of(ring, node, _asking_user(), time.time())
    if found is None:
        return SuspectDocument(node, "unknown", printable_line(suspect.why, 600))
    if not token:
        return SuspectDocument(node, found.outcome, found.why, found)
    kept = tell(arguments.collector, token, found)
    return SuspectDocument(node, found.outcome, found.why, found, True, kept.incidents)


def _asking_user() -> str:
    """The user who asks: the one behind sudo, where there is one."""
    if os.geteuid() == 0 and (behind := os.environ.get("SUDO_USER")):
        return behind[:64]
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


def _fleet(collector: str) -> _Fleet:
    """Raises UsageError."""
    try:
        with answer(collector, "nodes", {}) as found:
            nodes = wire.decode(found.read(), NodesDocument)
        with answer(collector, "exclusions", {}) as found:
            exclusions = wire.decode(found.read(), ExclusionsDocument)
    except wire.WireError as error:
        raise CannotTell(f"the collector at {without_login(collector)} is of another version: {error}") from None
    return _Fleet(nodes.nodes, frozenset(it.node for it in exclusions.exclusions))


def _known_name(name: str, fleet: _Fleet) -> str:
    """The name under which the node's agent reports. Raises UsageError."""
    found = KnownNames(row.node for row in fleet.rows if row.node).find(name)
    if found is None:
        raise UsageError(f"the collector knows no node {name}: give the name under which its agent reports")
    return found


def _measured_by_slurm(arguments: argparse.Namespace, node: str, fleet: _Fleet) -> Ring:
    """Raises NotMeasured, SchedulerAway and UsageError."""
    srun, sinfo, squeue = (program(name, getattr(arguments, name)) for name in ("srun", "sinfo", "squeue"))
    if srun is None or sinfo is None or squeue is None:
        raise UsageError(
            f"SLURM's srun is not here: start `laggard ring --pairs --suspect {node} --format json` on {node} and on "
            f"{MIN_RING_PEERS} peers or more, and give what node 0 prints with --ring FILE"
        )
    nodes = slurm_nodes(sinfo)
    known = KnownNames(nodes).find(node)
    if known is None:
        raise NotMeasured(f"SLURM has no node {node}")
    suspect = nodes[known]
    if not suspect.is_free:
        _refuse(suspect, squeue, is_waited_for=arguments.wait is not None)
    peers = list(expand_hosts(arguments.peers)) if arguments.peers else good_peers(node, fleet.rows, fleet.suspects)
    partition, chosen = choose_nodes(suspect, peers, nodes, arguments.partition, MAX_RING_PEERS)
    if len(chosen) < MIN_RING_PEERS:
        found = joined(chosen) if chosen else "none"
        raise NotMeasured(
            f"it takes {MIN_RING_PEERS} peers that are free, pass their checks and are not suspected, and "
            f"partition {partition} has {found}: ask again later, or name them with --peers"
        )
    wait = arguments.wait or _AT_ONCE_SECONDS
    words = tuple(shlex.split(arguments.laggard)) if arguments.laggard else _own_words()
    job = RingJob(
        suspect.name, chosen, partition, words, wait, arguments.seconds, arguments.deadline, arguments.ring_token_file
    )
    return measure(srun, job)


def _refuse(suspect: SlurmNode, squeue: str, is_waited_for: bool) -> None:
    """Raises NotMeasured where SLURM does not give the node, or not yet and nobody waits for it."""
    if not suspect.is_held:
        reason = f" ({suspect.reason})" if suspect.reason else ""
        raise NotMeasured(
            f"SLURM starts nothing on {suspect.name}, which is {suspect.state}{reason}: resume it, or start `laggard "
            f"ring --pairs --suspect {suspect.name} --format json` by hand and give its document with --ring"
        )
    if not is_waited_for:
        jobs = jobs_on(squeue, suspect.name)
        by = joined(jobs[:4]) if jobs else "a job"
        raise NotMeasured(f"{suspect.name} is held by {by}: ask again then, or wait for it with --wait TIME")


def _own_words() -> tuple[str, ...]:
    found = shutil.which("laggard")
    return (found,) if found else (sys.executable, "-m", "laggard")


def _read_ring(path: str) -> Ring:
    """Raises UsageError."""
    try:
        if path == "-":
            data = sys.stdin.buffer.read(_MAX_RING_BYTES + 1)
        else:
            with open(path, "rb") as file:
                data = file.read(_MAX_RING_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--ring {path} cannot be read: {error.strerror}") from None
    found = ring_in(data) if len(data) <= _MAX_RING_BYTES else None
    if found is None:
        raise UsageError(f"--ring {path} is no document of `laggard ring --format json`")
    return found


def _say(form: str, document: SuspectDocument, ring: Ring | None) -> int:
    if form == "json":
        sys.stdout.write(wire.encode(document).decode() + "\n")
        sys.stdout.flush()
    else:
        show(_lines(document, ring))
    return EXIT_CODES[_STATUS[document.outcome]]


def _lines(document: SuspectDocument, ring: Ring | None) -> list[Line]:
    if ring is None or ring.suspect is None:
        return [Line(f"{document.node} was not measured: {document.why}.", Verdict.UNKNOWN.value)]
    lines = [Line(printable_line(suspect_text(ring.suspect)), _STATUS[document.outcome].value)]
    found = document.confirmation
    for swap in found.swaps if found else ():
        rate = swap.busbw_bytes_per_second
        told = "failed" if rate is None else f"{rate / 1e6:.4g} MB/s"
        lines.append(Line("  " + printable_line(f"{swap.first} first, {swap.second} second: {told}")))
    if document.written:
        where = f"in {counted(len(document.incidents), 'incident')} of it" if document.incidents else "of the node"
        lines.append(Line(f"The collector keeps it, {where}."))
    return lines
