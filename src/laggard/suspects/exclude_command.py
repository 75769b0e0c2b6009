"""`laggard exclude`: the nodes that the next job is to leave out, the worst first, as sbatch, a hostfile or a pod
takes them."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

from laggard import wire
from laggard.kit.address import without_login
from laggard.kit.collector_client import answer
from laggard.kit.errors import CannotTell, UsageError
from laggard.kit.flags import add_collector, duration
from laggard.kit.parts import Line
from laggard.kit.terminal import show
from laggard.kit.words import counted, printable_line, utc_text
from laggard.model import EXIT_CODES, Verdict
from laggard.suspects.scheduler import (
    KnownNames,
    SchedulerAway,
    hostlist,
    is_host_name,
    kubernetes_names,
    program,
    slurm_names,
)
from laggard.wire.exclusion import MAX_SECONDS, ExcludeDocument, Exclusion, ExclusionsDocument

# The nodes to leave out as Kubernetes' pods are told: a nodeAffinity, for the template of a Job. Pure.
#
# The name itself is matched, and not the label kubernetes.io/hostname, which a kubelet may have another value for. Of a
# field one value alone can be named in a requirement; all requirements of a term have to hold
# (https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/, NodeSelectorTerm.matchFields).

_HEAD = """affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        - matchFields:
"""


def node_affinity(names: Sequence[str]) -> str:
    """Empty where there are no names."""
    if not names:
        return ""
    rows = (f"            - {{key: metadata.name, operator: NotIn, values: [{json.dumps(name)}]}}\n" for name in names)
    return _HEAD + "".join(rows)


class Chosen(NamedTuple):
    """`names`: of `listed`, as the scheduler has them. `over_cap`: those that the cap keeps out of the list.
    `not_known`: those that the scheduler has no more."""

    names: tuple[str, ...]
    listed: tuple[Exclusion, ...]
    over_cap: tuple[Exclusion, ...]
    not_known: tuple[str, ...]


def choose(document: ExclusionsDocument, known: KnownNames | None) -> Chosen:
    """`known`: the scheduler's nodes; None: it was not asked."""
    names: dict[str, Exclusion] = {}
    not_known = []
    for it in document.exclusions:
        name = it.node if known is None else known.find(it.node)
        if name is None or not is_host_name(name):
            not_known.append(it.node)
        else:
            names.setdefault(name, it)
    listed, over = list(names.items())[: document.cap], list(names.items())[document.cap :]
    return Chosen(
        tuple(name for name, _ in listed),
        tuple(it for _, it in listed),
        tuple(it for _, it in over),
        tuple(not_known),
    )


def cap_text(chosen: Chosen, document: ExclusionsDocument) -> str:
    """One line that says which nodes the cap keeps out of the list; empty: none."""
    if not chosen.over_cap:
        return ""
    suspect = len(chosen.listed) + len(chosen.over_cap)
    return printable_line(
        f"{suspect} of {counted(document.answering, 'node')} are suspect, and at most {document.cap} may be left out "
        f"at once (max_drain_ratio): {', '.join(it.node for it in chosen.over_cap[:8])} stay in"
    )


def explained(chosen: Chosen, document: ExclusionsDocument) -> Iterator[str]:
    """The list in words: a line for each node that is in it, and for each that could be and is not."""
    yield f"{counted(len(chosen.names), 'node')} to leave out." if chosen.names else "No node is to be left out."
    for name, it in zip(chosen.names, chosen.listed, strict=True):
        yield printable_line(f"{name}: {it.reason}; {_when(it)}")
    if text := cap_text(chosen, document):
        yield f"The cap: {text}."
        for it in chosen.over_cap:
            yield printable_line(f"{it.node} stays in: {it.reason}; {_when(it)}")
    for node in chosen.not_known:
        yield printable_line(f"{node} is left away: the scheduler has no such node")
    for each in document.left_in:
        yield printable_line(f"{each.node} stays in: {each.why}")


def _when(it: Exclusion) -> str:
    since = "since before the collector started" if it.since is None else f"since {utc_text(it.since)}"
    return f"{since}, " + ("as long as its checks fail" if it.until is None else f"until {utc_text(it.until)}")


class Filtered(NamedTuple):
    """The file's lines without the excluded hosts, and how many hosts are left."""

    text: str
    left: int
    excluded: tuple[str, ...]


def without(text: str, names: Collection[str]) -> Filtered:
    """Comments and empty lines stay, and so does whatever follows a host: `n1 slots=8`, `n1:8`."""
    known = KnownNames(names)
    kept, excluded, left = [], [], 0
    for line, host in _hosts(text):
        if host and known.find(host) is not None:
            excluded.append(host)
        else:
            kept.append(line)
            left += bool(host)
    return Filtered("".join(kept), left, tuple(excluded))


def _hosts(text: str) -> Iterator[tuple[str, str]]:
    """Yields each line with its host; empty: it names none."""
    for line in text.splitlines(keepends=True):
        word = line.partition("#")[0].split()
        yield line, word[0].partition(":")[0] if word else ""


_MAX_HOSTFILE_BYTES: Final = 16 << 20


def configure(parser: argparse.ArgumentParser) -> None:
    add_collector(parser)
    parser.add_argument(
        "--format",
        choices=("slurm", "kubernetes", "json"),
        default="slurm",
        help="slurm: one line for sbatch --exclude=, and nothing where there is none; kubernetes: a nodeAffinity; "
        "json: one document (default: slurm)",
    )
    parser.add_argument("--hostfile", metavar="FILE", help="print this hostfile without the nodes to leave out")
    parser.add_argument("--explain", action="store_true", help="say which nodes, why, since when and until when")
    parser.add_argument(
        "--for",
        dest="seconds",
        type=duration(1, MAX_SECONDS),
        metavar="TIME",
        help="for so long after it was last named a node is left out: 90m, 12h (default: the collector's "
        "exclude_seconds)",
    )
    parser.add_argument(
        "--scheduler",
        choices=("auto", "slurm", "kubernetes", "none"),
        default="auto",
        help="whose nodes count: names that it does not know are left away (default: by the format, where its program "
        "is here)",
    )
    parser.add_argument("--sinfo", metavar="PATH", help=argparse.SUPPRESS)  # else the one in PATH
    parser.add_argument("--kubectl", metavar="PATH", help=argparse.SUPPRESS)


def main(arguments: argparse.Namespace) -> int:
    """0: the list is whole; 1: the cap keeps nodes out of it that are suspect; 2: cannot tell. Raises UsageError."""
    document = _asked(arguments)
    scheduler, known = _known(arguments)
    chosen = choose(document, known)
    if arguments.format == "json":
        sys.stdout.write(wire.encode(_document(chosen, document, scheduler)).decode() + "\n")
    elif arguments.explain:
        show([Line(line) for line in explained(chosen, document)])
    else:
        sys.stdout.write(_list(arguments, chosen))
    sys.stdout.flush()
    if text := cap_text(chosen, document):
        print(f"laggard: {text}", file=sys.stderr)
        return EXIT_CODES[Verdict.FAIL]
    return EXIT_CODES[Verdict.OK]


def _asked(arguments: argparse.Namespace) -> ExclusionsDocument:
    """Raises CannotTell."""
    query = {} if arguments.seconds is None else {"seconds": f"{arguments.seconds:g}"}
    try:
        with answer(arguments.collector, "exclusions", query) as found:
            document = wire.decode(found.read(), ExclusionsDocument)
    except UsageError as error:
        raise _cannot_tell(str(error)) from None
    except wire.WireError as error:
        where = without_login(arguments.collector)
        raise _cannot_tell(f"the collector at {where} is of another version: {error}") from None
    if document.unknown:
        raise _cannot_tell(f"the collector at {without_login(arguments.collector)} knows nothing: {document.unknown}")
    return document


def _known(arguments: argparse.Namespace) -> tuple[str, KnownNames | None]:
    """Which scheduler was asked, and its nodes; None: there is none to ask. Raises CannotTell."""
    wanted = arguments.scheduler
    if wanted == "auto":
        wanted = "none" if arguments.hostfile else arguments.format if arguments.format != "json" else "slurm"
    name, given = ("kubectl", arguments.kubectl) if wanted == "kubernetes" else ("sinfo", arguments.sinfo)
    path = program(name, given)
    in_pod = wanted == "kubernetes" and "KUBERNETES_SERVICE_HOST" in os.environ
    if wanted == "none" or (path is None and arguments.scheduler == "auto" and not in_pod):
        return "none", None
    if path is None and not in_pod:
        raise _cannot_tell(f"{name} is not here: name it with --{name}, or leave names unchecked with --scheduler none")
    try:
        known = kubernetes_names(path) if wanted == "kubernetes" else slurm_names(str(path))
    except SchedulerAway as error:
        raise _cannot_tell(f"which nodes there are cannot be asked: {error}") from None
    return wanted, known


def _list(arguments: argparse.Namespace, chosen: Chosen) -> str:
    """Raises UsageError where a hostfile cannot be read, or no host of it is left."""
    if arguments.hostfile:
        filtered = without(_read(arguments.hostfile), chosen.names)
        if filtered.excluded and not filtered.left:
            raise UsageError(f"no host of {arguments.hostfile} is left: {', '.join(filtered.excluded[:8])} are suspect")
        return filtered.text
    if arguments.format == "kubernetes":
        return node_affinity(chosen.names)
    return f"{hostlist(chosen.names)}\n" if chosen.names else ""


def _read(path: str) -> str:
    """Raises UsageError."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_MAX_HOSTFILE_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--hostfile {path} cannot be read: {error}") from None
    if len(text) > _MAX_HOSTFILE_BYTES:
        raise UsageError(f"--hostfile {path} is larger than {_MAX_HOSTFILE_BYTES} characters: no hostfile")
    return text


def _document(chosen: Chosen, document: ExclusionsDocument, scheduler: str) -> ExcludeDocument:
    return ExcludeDocument(
        chosen.names,
        hostlist(chosen.names),
        chosen.listed,
        chosen.over_cap,
        chosen.not_known,
        document.left_in,
        scheduler,
        document.cap,
        document.answering,
        document.seconds,
        document.now,
    )


def _cannot_tell(why: str) -> CannotTell:
    return CannotTell(f"cannot tell which nodes to leave out: {printable_line(why, 1000)}")
