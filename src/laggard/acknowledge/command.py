"""`laggard findings`: the codes and their pages, and what operators have acknowledged: on this node itself, by a file
of root's, or at a collector, for whose token one is an operator."""

from __future__ import annotations

import argparse
import os
import pwd
import re
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final

from laggard import wire
from laggard.acknowledge.asked import NotAcknowledged, acknowledgement, signed, without
from laggard.acknowledge.kept_file import (
    MAX_ACKNOWLEDGEMENTS,
    KeptFileError,
    change_kept,
    read_kept,
)
from laggard.acknowledge.matching import words
from laggard.address import without_login
from laggard.catalogue import command as catalogue
from laggard.collector_client import COLLECTOR_HELP, answer, ask
from laggard.constants import ACKNOWLEDGED_FILE, AGENT_PORT
from laggard.environment import node_name
from laggard.errors import UsageError
from laggard.model import Finding, Report
from laggard.rings.membership import expand_hosts
from laggard.secret_files import read_token_file
from laggard.terminal.output import show
from laggard.terminal.parts import Line
from laggard.text.words import counted, printable_line
from laggard.wire.acknowledgement import (
    ALL_CODES,
    MAX_NODES,
    MAX_SECONDS,
    AcknowledgeAsk,
    Acknowledgement,
    AcknowledgementsDocument,
)

TOKEN_FILE: Final = "/etc/laggard/acknowledge-token"
_UNITS: Final = {"m": 60, "h": 3600, "d": 86400, "w": 604800}
_AGENT_SECONDS: Final = 2.0
_NAMED_NODES: Final = 8


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        choices=("list", "explain", "acknowledge", "maintenance", "acknowledged"),
        help="list: all codes; explain: the page of each CODE; acknowledge: CODE drains no node for a while; "
        "maintenance: no code does; acknowledged: what is acknowledged now",
    )
    parser.add_argument("codes", nargs="*", metavar="CODE", help="such as DISK_FULL")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json: one document")
    group = parser.add_argument_group("for acknowledge, maintenance and acknowledged")
    group.add_argument("--node", "--nodes", dest="nodes", metavar="LIST", help="n7, or n[1-16] (default: this node)")
    group.add_argument("--for", dest="seconds", type=_seconds, metavar="TIME", help="90m, 24h, 7d: then it ends")
    group.add_argument("--reason", metavar="TEXT", default="", help="why, for those who read it later")
    group.add_argument(
        "--device", metavar="NAME", default="", help="the only one, or '*' for any (default: those that have it now)"
    )
    group.add_argument("--withdraw", metavar="ID", default="", help="with acknowledged: end this one")
    group.add_argument("--collector", metavar="URL", help=f"for all nodes: {COLLECTOR_HELP.partition(' (')[0]}")
    group.add_argument(
        "--token-file", metavar="FILE", default=TOKEN_FILE, help=f"the collector's secret (default: {TOKEN_FILE})"
    )
    group.add_argument(
        "--file",
        metavar="FILE",
        default=ACKNOWLEDGED_FILE,
        help=f"without --collector: this node's (default: {ACKNOWLEDGED_FILE})",
    )
    group.add_argument("--agent-port", type=int, metavar="PORT", default=AGENT_PORT, help="of this node's agent")


def main(arguments: argparse.Namespace) -> int:
    if arguments.action in ("list", "explain"):
        return catalogue.main(arguments)
    if arguments.action == "acknowledged" and not arguments.withdraw:
        known = _listed(arguments)
        _say(arguments.format, known, _lines(known))
        return 0
    asked = _asked(arguments)
    changed = _at_collector(arguments, asked) if arguments.collector else _on_this_node(arguments, asked)
    verb = "Withdrawn" if asked.withdraw else "Kept"
    _say(arguments.format, changed, (f"{verb}: {line}" for line in map(_line, changed)))
    return 0


def _asked(arguments: argparse.Namespace) -> AcknowledgeAsk:
    """Raises UsageError."""
    now, nonce = time.time(), secrets.token_hex(16)
    if arguments.action == "acknowledged":
        return AcknowledgeAsk(asking_user(), now, nonce, withdraw=arguments.withdraw)
    is_window = arguments.action == "maintenance"
    if is_window and (arguments.codes or arguments.device):
        raise UsageError("a maintenance window is for all codes and devices: leave CODE and --device out")
    if not is_window and len(arguments.codes) != 1:
        raise UsageError("name one code to acknowledge; `laggard findings list` lists them")
    if arguments.seconds is None:
        raise UsageError("say with --for when it ends by itself: 90m, 24h, 7d")
    if not arguments.reason.strip():
        raise UsageError("say why with --reason, for those who read it later")
    code = ALL_CODES if is_window else arguments.codes[0].upper().replace("-", "_")
    reason = printable_line(arguments.reason, 500)
    return AcknowledgeAsk(
        asking_user(), now, nonce, code, _nodes(arguments), arguments.device, arguments.seconds, reason
    )


def _nodes(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Raises UsageError."""
    here = node_name(os.environ)
    if arguments.nodes is None:
        return (here,)
    nodes = tuple(dict.fromkeys(expand_hosts(arguments.nodes)))
    if not nodes or len(nodes) > MAX_NODES:
        raise UsageError(f"--nodes takes up to {MAX_NODES} names as SLURM writes them, n7 or n[1-16,20]")
    if not arguments.collector and nodes != (here,):
        raise UsageError(f"this is {here}: name a collector (--collector) for other nodes, or run it there")
    return nodes


def _on_this_node(arguments: argparse.Namespace, asked: AcknowledgeAsk) -> tuple[Acknowledgement, ...]:
    """Changes this node's file. Returns the one that was added or has ended. Raises UsageError."""
    present = () if asked.withdraw else _present(arguments.agent_port)
    changed: list[Acknowledgement] = []

    def change(known: tuple[Acknowledgement, ...]) -> tuple[Acknowledgement, ...]:
        if asked.withdraw:
            rest = without(known, asked.withdraw)
            changed.extend(it for it in known if it not in rest)
            return rest
        if len(known) >= MAX_ACKNOWLEDGEMENTS:
            raise UsageError(f"{len(known)} acknowledgements hold already: withdraw some")
        changed.append(acknowledgement(asked, present, time.time()))
        return (*known, *changed)

    try:
        change_kept(arguments.file, change)
    except NotAcknowledged as error:
        raise UsageError(str(error)) from None
    return tuple(changed)


def _present(port: int) -> Sequence[Finding]:
    """The findings of this node's agent; none where there is no agent."""
    from laggard.http.client import NoResponse, get

    try:
        return wire.decode(get(f"http://127.0.0.1:{port}/api/v1/report", _AGENT_SECONDS).body, Report).findings
    except (NoResponse, wire.WireError):
        return ()


def _at_collector(arguments: argparse.Namespace, asked: AcknowledgeAsk) -> tuple[Acknowledgement, ...]:
    """Raises UsageError."""
    token = read_token_file(arguments.token_file, "--token-file")[0]
    body = ask(arguments.collector, "acknowledge", wire.encode(signed(token, asked)))
    return _decoded(body, arguments.collector).acknowledgements


def _listed(arguments: argparse.Namespace) -> tuple[Acknowledgement, ...]:
    """Raises UsageError."""
    if arguments.collector:
        with answer(arguments.collector, "acknowledgements", {}) as found:
            return _decoded(found.read(), arguments.collector).acknowledgements
    try:
        return read_kept(arguments.file)
    except KeptFileError as error:
        raise UsageError(str(error)) from None


def _decoded(body: bytes, collector: str) -> AcknowledgementsDocument:
    try:
        return wire.decode(body, AcknowledgementsDocument)
    except wire.WireError as error:
        raise UsageError(f"the collector at {without_login(collector)} is of another version: {error}") from None


def _say(form: str, known: tuple[Acknowledgement, ...], lines: Iterator[str]) -> None:
    if form == "json":
        sys.stdout.write(wire.encode(AcknowledgementsDocument(known)).decode() + "\n")
    else:
        show([Line(line) for line in lines])
    sys.stdout.flush()


def _lines(known: Sequence[Acknowledgement]) -> Iterator[str]:
    yield f"{counted(len(known), 'acknowledgement')}." if known else "Nothing is acknowledged."
    yield from map(_line, known)


def _line(known: Acknowledgement) -> str:
    """`3fa0b1c2  GPU_XID GPU 0000:9b:00.0 on n7: acknowledged by bob until ...: ticket 77`."""
    devices = ", ".join(it.device for it in known.covers[:_NAMED_NODES])
    nodes = ", ".join(known.nodes[:_NAMED_NODES])
    more = f" and {len(known.nodes) - _NAMED_NODES} more" if len(known.nodes) > _NAMED_NODES else ""
    return printable_line(
        f"{known.id} {' '.join(filter(None, (known.code, devices)))} on {nodes}{more}: {words(known)}"
    )


def asking_user() -> str:
    """Who asks: the user behind sudo, where there is one."""
    if os.geteuid() == 0 and (behind := os.environ.get("SUDO_USER")):
        return behind[:64]
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


def _seconds(text: str) -> float:
    found = re.fullmatch(r"([0-9]{1,5})([mhdw])", text)
    seconds = int(found[1]) * _UNITS[found[2]] if found else 0
    if not 0 < seconds <= MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is no time up to 90 days: write 90m, 24h or 7d")
    return float(seconds)
