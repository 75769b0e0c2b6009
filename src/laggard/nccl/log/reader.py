"""Reads NCCL's logs (NCCL_DEBUG=INFO), one process's or a whole job's in one file. Standard library only.

    reader = NcclLogReader()
    for piece in pieces:        # text, cut anywhere
        reader.feed(piece)
    log = reader.log()          # at any time; more may be fed after it

The reader knows every form of NCCL 2.7 to 2.30 and what 2.32.3 adds, behind the prefixes of any launcher (see
lines.py), with the lines of many processes in any order and torn by one another. Nothing in a log is an error: the
reader drops lines of a form it does not know. The number of processes bounds the memory; the reader keeps
MAX_PROCESSES of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from laggard.nccl.log import model
from laggard.nccl.log.lines import VERSION, LogLine, PrefixCache, ProcessBuilder, Writer, lines_in, version_in
from laggard.nccl.log.model import NcclLog, parse_channel

# Parses the messages of NCCL's log, one row or one function for each form of message. Standard library only.
#
# The forms are those of the release tags 2.7 to 2.30 (src/init.cc, src/plugin/net.cc, src/transport, src/graph,
# src/misc), of 2.32.3 for what is new there (src/transport/net_ib/wqe_lat_mon.cc), and of AWS's plugin. The first word
# of a message chooses its parser; a message without a parser is dropped.

_COMMUNICATOR = re.compile(r"\bcomm (\S{1,40}) rank (\d{1,9}) n[rR]anks (\d{1,9})\b")
_NODES = re.compile(r" nNodes (\d{1,9}) localRanks (\d{1,9})\b")
_GPU = re.compile(r" cudaDev (\d{1,9})(?: nvmlDev \d+)? busId ([0-9a-fA-F]{1,16})\b")
_IDENTITY = re.compile(r" commId (0x[0-9a-fA-F]{1,32})\b")
_SET = re.compile(r"(NCCL_[A-Z0-9_]{1,80}) set (?:by environment )?to (.*)")
_USING = re.compile(r"NET/([^:]+?) ?: Using ?(.*)")
_DEVICE = re.compile(r"\[\d+\]([^\s:/]{1,64}:\d[^\s/]{0,32}/(?:IB|RoCE))\b")
_ASKED = re.compile(r"(?:NET/Plugin ?: )?Plugin name set by env to (\S+)")
_SLOW_TRANSFER = re.compile(
    r"NET/IB[^:]{0,16}: WQE (slow|stall \(no CQE\)): .*?\bdev=(\S{1,64}) .*\b(?:delta|age)=(\d{1,18})ns"
)
_NET_CHARACTERS: Final = 2048
_FROM_GPU = re.compile(r"GPU/([0-9A-Fa-f]+(?:-[0-9A-Fa-f]+)?) ?:")
_TO_GPU = re.compile(r"GPU/([0-9A-Fa-f]+(?:-[0-9A-Fa-f]+)?) \(\d+/[\d.]+/([A-Z0-9]{3})\)")


def parse_message(builder: ProcessBuilder, text: str, warning: bool) -> None:
    """Adds the text of one line to `builder`. Some messages are a warning in one version and information in the next,
    so both are parsed alike. A warning that no parser takes for a hint is kept as it is."""
    hints = builder.hint_lines
    first, _, _ = text.partition(" ")
    if _OF_A_FORM.match(text):
        _parse_form(builder, text)
    elif first == "Plugin" or first.startswith("NET/"):
        _parse_net(builder, text)
    elif first.startswith("NCCL_"):
        _parse_variable(builder, text)
    elif first.startswith("GPU/"):
        _parse_links(builder, text)
    elif first == "comm" or " comm " in text[:80]:
        _parse_communicator(builder, text)
    if warning and builder.hint_lines == hints:
        builder.warnings.add(text)


def _parse_communicator(builder: ProcessBuilder, text: str) -> None:
    match = _COMMUNICATOR.search(text)
    if match is None:
        return
    fields: dict[str, int | str | bool] = {"rank": int(match[2]), "ranks": int(match[3])}
    if nodes := _NODES.search(text):
        fields |= {"nodes": int(nodes[1]), "local_ranks": int(nodes[2])}
    if gpu := _GPU.search(text):
        fields |= {"cuda_device": int(gpu[1]), "bus_id": gpu[2].lower()}
    if identity := _IDENTITY.search(text):
        fields["identity"] = identity[1]
    if text.endswith("Init COMPLETE"):
        fields["complete"] = True
    if text.endswith("Init START"):
        builder.show(started=True)
    builder.update_communicator(match[1], fields)


def _parse_variable(builder: ProcessBuilder, text: str) -> None:
    """Adds a variable that NCCL read. Most versions put a full stop after a number, and none after a word."""
    match = _SET.fullmatch(text)
    if match:
        value = match[2].strip()
        number = value[:-1].removeprefix("-")
        builder.set_variable(match[1], value[:-1] if value.endswith(".") and number.isdecimal() else value)


def _parse_net(builder: ProcessBuilder, text: str) -> None:
    text = text[:_NET_CHARACTERS]
    if match := _USING.match(text):
        _parse_devices(builder, match[1], match[2])
    elif "No device found" in text:
        builder.show(rdma_devices=builder.process.rdma_devices or ())
        builder.networks_tried.add(_network_of(text))
        builder.add_hint(model.NO_DEVICE, text)
    elif match := _ASKED.match(text):
        builder.set_variable("NCCL_NET_PLUGIN", match[1])
    elif match := _SLOW_TRANSFER.match(text):
        builder.add_slow_transfer(match[2], match[1] != "slow", int(match[3]), text)
    elif " speed change detected: " in text:
        builder.diagnostics.pop(text, None)  # the last change is that which holds
        builder.diagnostics.add(text)
    else:
        _parse_form(builder, text)


def _network_of(text: str) -> str:
    """`IB` of `NET/IB : No device found.`"""
    return text.removeprefix("NET/").split(":")[0].strip()


def _parse_devices(builder: ProcessBuilder, network: str, text: str) -> None:
    """Adds a network's list of devices. Sockets list their interfaces too, as `[0]eth0:10.0.0.1<0>`; and an empty list
    may follow `No device found`."""
    builder.networks_tried.add(network)
    found = tuple(_DEVICE.findall(text.partition("; OOB")[0]))[:64]
    if found:
        builder.show(rdma_devices=found)
    elif network == "IB":
        builder.show(rdma_devices=builder.process.rdma_devices or ())


_NO_LIBRARY: Final = r"(?:Failed to|Could not|Count not) open libibverbs|dlvsym failed on ibv_"
_NO_PROVIDER: Final = r"(?i:NET/OFI (?:Could(?:n't| not) find any|No eligible|No) .*provider)"
_NO_PLUGIN: Final = r"NET/Plugin ?: (?:Could not find:|Plugin load \()(?! ?(?:lib[nr]ccl-net(?:-none)?\.so|none)\b)"
"""A plugin that was asked for: without a wish NCCL looks for its own name, and goes on without it."""
_FORMS: Final[tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], dict[str, Any]]], ...]] = tuple(
    (re.compile(form), shown)
    for form, shown in (
        (r"Using network (.*)", lambda match: {"network": match[1].strip()[:80]}),
        (r"NET/OFI Selected [Pp]rovider is (\S+?),?(?: |$)", lambda match: {"provider": match[1]}),
        (
            r"NET/OFI Initializing aws-ofi-nccl (\d{1,4})\.(\d{1,4})\b",
            lambda match: {"libfabric_plugin": (int(match[1]), int(match[2]))},
        ),
        (
            r"NET/OFI Using transport protocol (SENDRECV|RDMA)(?: \((user|platform) set\))?$",
            lambda match: {"protocol": match[1], "protocol_set_by": match[2] or ""},
        ),
        (r"Connected all rings, use ring PXN \d+ GDR (\d)", lambda match: {"ring_gdr": match[1] != "0"}),
        (VERSION, lambda match: {"version": match[1]}),
        (r"cudaDriverVersion\b", lambda match: {"started": True}),
        (r"NET/\S+ ?: GPU Direct RDMA Disabled for HCA \d+", model.GDR_NO_MODULE),
        (_NO_PROVIDER, model.NO_PROVIDER),
        (r"NET/\S+ ?: (?:Unable to (?:open|query)|No IP interface found)", model.DEVICE_REFUSED),
        (r"NET/\S+ ?: (?:\S+ )?Got completion .*(?:error|status)", model.NOT_DELIVERED),
        (_NO_PLUGIN, model.PLUGIN_MISSING),
        (r"Failed to initialize ", model.PLUGIN_FAILED),
        (_NO_LIBRARY, model.NO_LIBRARY),
        (r"Could not enable P2P", model.P2P_FAILED),
        (r"peer query failed", model.P2P_FAILED),
        (r"GPU Direct RDMA Disabled for GPU", model.GDR_FAR),
        (r"P2P is disabled between", model.P2P_REFUSED),
        (r"Legacy IPC not supported", model.NO_IPC),
        (r"Call to ibv_modify_qp failed", model.QUEUE_PAIR_FAILED),
        (r"Mismatched NCCL version", model.MISMATCH),
    )
)
"""The messages of one form: the fields of NcclProcess that they show, or the kind of hint that they are."""


_OF_A_FORM: Final = re.compile(
    r"(?:Using|Connected|[NR]CCL|cudaDriverVersion|Failed|dlvsym|Could|Count|GPU|P2P|peer|Legacy|Call|Mismatched)( |$)"
)
"""The first words of these messages, but for those that begin with NET/."""


def _parse_form(builder: ProcessBuilder, text: str) -> None:
    for form, shown in _FORMS:
        if match := form.match(text):
            if isinstance(shown, str):
                builder.add_hint(shown, text)
            else:
                builder.show(**shown(match))
            return


def _parse_links(builder: ProcessBuilder, text: str) -> None:
    """Adds the links in one row of the GRAPH subsystem's table: from one GPU to each other GPU, with the distance."""
    start = _FROM_GPU.match(text)
    if start:
        for end, distance in _TO_GPU.findall(text):
            one, other = sorted((_bus(start[1]), _bus(end)))
            if one != other:
                builder.set_link(one, other, distance)


def _bus(identity: str) -> str:
    return identity.rpartition("-")[2].lower()


MAX_PROCESSES: Final = 16384
_MAX_LINE_CHARACTERS = 1 << 16
_PIECE = 1 << 20
_NCCL: Final = " NCCL "
_PLAIN: Final = {"INFO ": "INFO", "WARN ": "WARN"}


class NcclLogReader:
    """Takes the text in pieces. A last line without its line feed waits for its rest, and is not used without it."""

    def __init__(self) -> None:
        self._prefixes = PrefixCache()
        self._builders: dict[Writer, ProcessBuilder] = {}
        self._dropped: set[Writer] = set()
        self._versions: dict[str, None] = {}
        self._rest = ""
        self._lines = 0
        self._torn = 0

    def feed(self, text: str) -> None:
        """Reads the next piece."""
        for start in range(0, len(text), _PIECE):
            *whole, self._rest = (self._rest + text[start : start + _PIECE]).split("\n")
            self._rest = self._rest[-_MAX_LINE_CHARACTERS:]
            for line in whole:
                if "CCL" in line:  # NCCL's, or the version of RCCL
                    self._read(line)

    def end(self) -> None:
        """Ends a file: its last line gets no more text. Another file may follow."""
        if "NCCL" in self._rest:
            self._lines += 1
            self._torn += 1
        self._rest = ""

    def log(self) -> NcclLog:
        """The log that the pieces fed so far show. A last line without its line feed counts as torn."""
        processes = [builder.build() for builder in _without_shadows(self._builders.values())]
        unfinished = "NCCL" in self._rest
        return NcclLog(
            tuple(sorted(processes, key=lambda process: (process.host, process.pid))),
            tuple(self._versions),
            self._lines + unfinished,
            self._torn + unfinished,
            len(self._dropped),
        )

    def _read(self, text: str) -> None:
        found = False
        for line in self._split(text[:_MAX_LINE_CHARACTERS].rstrip("\r")):
            found = True
            self._lines += 1
            builder = self._builder(line.writer)
            if line.torn:
                self._torn += 1
            elif builder is not None:
                self._add(builder, line)
        if not found and (version := version_in(text)):
            self._lines += 1
            self._versions[version] = None

    def _split(self, text: str) -> Iterator[LogLine]:
        """NCCL's lines in one line of the file. Most are a plain line of NCCL, and a log has millions of them: those
        take the short way."""
        at = text.find(_NCCL)
        end = at + len(_NCCL) + len("INFO ")
        level = _PLAIN.get(text[end - len("INFO ") : end])
        plain = at > 0 and level and "\x1b" not in text and text[0] != "{" and text[-1] != "]"
        if plain and level and text.find("NCCL ", end) < 0:
            writer = self._prefixes.writer(text[: at + 1])
            return iter(() if writer is None else (LogLine(writer, level, text[end:].rstrip(), False),))
        return lines_in(text, self._prefixes)

    def _builder(self, writer: Writer) -> ProcessBuilder | None:
        """The writer's builder; None for a process beyond the first MAX_PROCESSES."""
        builder = self._builders.get(writer)
        if builder is None:
            if len(self._builders) >= MAX_PROCESSES:
                if len(self._dropped) < MAX_PROCESSES:
                    self._dropped.add(writer)
                return None
            builder = self._builders[writer] = ProcessBuilder(*writer)
        return builder

    def _add(self, builder: ProcessBuilder, line: LogLine) -> None:
        builder.lines += 1
        text = line.text
        if not text.startswith(("Channel ", "Coll")):
            if line.level == "DIAG":
                builder.diagnostics.add(text)
            else:
                parse_message(builder, text, line.level in ("WARN", "ATTN"))
            return
        _, _, channel = text.partition(" : ")
        if channel in builder.channel_lines:
            builder.channel_lines[channel] += 1
        elif connection := parse_channel(channel):
            builder.add_channel(channel, connection)


def parse_nccl_log(text: str) -> NcclLog:
    """The log in one text. A last line without its line feed may be cut off: it counts as torn."""
    reader = NcclLogReader()
    reader.feed(text)
    return reader.log()


def _without_shadows(builders: Iterable[ProcessBuilder]) -> Iterator[ProcessBuilder]:
    """Drops the processes that exist only because a host's name was torn: it lost its beginning, or got the end of
    another line in front. Such a process has the same pid as one on another host, one host's name is the end of the
    other's, and the other process wrote more lines."""
    by_pid: dict[int, list[ProcessBuilder]] = {}
    for builder in builders:
        by_pid.setdefault(builder.process.pid, []).append(builder)
    for same_pid in by_pid.values():
        yield from (one for one in same_pid if not any(_is_shadow(one, other) for other in same_pid))


def _is_shadow(builder: ProcessBuilder, other: ProcessBuilder) -> bool:
    similar = builder.process.host.endswith(other.process.host) or other.process.host.endswith(builder.process.host)
    return (
        builder is not other
        and bool(builder.process.host and other.process.host)
        and similar
        and other.lines > builder.lines
    )
