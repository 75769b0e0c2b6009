"""What the lines of NCCL's log say, form by form. Standard library only.

Forms are those of the release tags 2.7 to 2.30 (src/init.cc, src/plugin/net.cc, src/transport, src/graph, src/misc) and
of AWS's plugin. A form is found by the first word of the text; what no form knows is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from laggard.nccl.log import model as values
from laggard.nccl.log.builder import Draft

Form = Callable[[Draft, str], None]

_COMMUNICATOR = re.compile(r"\bcomm (\S{1,40}) rank (\d{1,9}) n[rR]anks (\d{1,9})\b")
_NODES = re.compile(r" nNodes (\d{1,9}) localRanks (\d{1,9})\b")
_GPU = re.compile(r" cudaDev (\d{1,9})(?: nvmlDev \d+)? busId ([0-9a-fA-F]{1,16})\b")
_IDENTITY = re.compile(r" commId (0x[0-9a-fA-F]{1,32})\b")
_SET = re.compile(r"(NCCL_[A-Z0-9_]{1,80}) set (?:by environment )?to (.*)")
_USING = re.compile(r"NET/([^:]+?) ?: Using ?(.*)")
_DEVICE = re.compile(r"\[\d+\]([^\s:/]{1,64}:\d[^\s/]{0,32}/(?:IB|RoCE))\b")
_PLUGIN = re.compile(r"NET/Plugin ?: Loaded net plugin (.+?) \(v\d+\)")
_ASKED = re.compile(r"(?:NET/Plugin ?: )?Plugin name set by env to (\S+)")
_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is (\S+?),?(?: |$)")
_OFI_NONE = re.compile(r"NET/OFI (?:Could(?:n't| not) find any|No eligible|No) .*provider", re.IGNORECASE)
_NOT_OPENED = re.compile(r"NET/\S+ ?: (?:Unable to (?:open|query)|No IP interface found)")
_HCA = re.compile(r"NET/\S+ ?: GPU Direct RDMA Disabled for HCA \d+")
_RING = re.compile(r"Connected all rings, use ring PXN \d+ GDR (\d)")
_COMPLETION = re.compile(r"NET/\S+ ?: (?:\S+ )?Got completion .*(?:error|status)")
_LIBVERBS = re.compile(r"(?:Failed to|Could not|Count not) open libibverbs|dlvsym failed on ibv_")
_FROM_GPU = re.compile(r"GPU/([0-9A-Fa-f]+(?:-[0-9A-Fa-f]+)?) ?:")
_TO_GPU = re.compile(r"GPU/([0-9A-Fa-f]+(?:-[0-9A-Fa-f]+)?) \(\d+/[\d.]+/([A-Z0-9]{3})\)")


def read_text(draft: Draft, text: str, warned: bool) -> None:
    """One line. Some were warnings in one version and information in the next: both are read alike, and a warning
    that no form takes for a reason is kept as it is."""
    hints = draft.hinted
    first, _, _ = text.partition(" ")
    form = _FORMS.get(first) or _form(first, text)
    if form:
        form(draft, text)
    if warned and draft.hinted == hints:
        draft.warning(text)


def _form(first: str, text: str) -> Form | None:
    if first.startswith("NET/"):
        return _net
    if first.startswith("NCCL_"):
        return _variable
    if first.startswith("GPU/"):
        return _links
    return _communicator if " comm " in text[:80] else None


def _communicator(draft: Draft, text: str) -> None:
    match = _COMMUNICATOR.search(text)
    if match is None:
        return
    known: dict[str, int | str | bool] = {"rank": int(match[2]), "ranks": int(match[3])}
    if nodes := _NODES.search(text):
        known |= {"nodes": int(nodes[1]), "local_ranks": int(nodes[2])}
    if gpu := _GPU.search(text):
        known |= {"cuda_device": int(gpu[1]), "bus_id": gpu[2].lower()}
    if identity := _IDENTITY.search(text):
        known["identity"] = identity[1]
    if text.endswith("Init COMPLETE"):
        known["complete"] = True
    draft.started = draft.started or text.endswith("Init START")
    draft.communicator(match[1], known)


def _variable(draft: Draft, text: str) -> None:
    """Numbers end with a full stop in most versions, words do not."""
    match = _SET.fullmatch(text)
    if match:
        value = match[2].strip()
        number = value[:-1].removeprefix("-")
        draft.variable(match[1], value[:-1] if value.endswith(".") and number.isdecimal() else value)


def _net(draft: Draft, text: str) -> None:
    if match := _USING.match(text):
        _devices(draft, match[1], match[2])
    elif "No device found" in text:
        draft.rdma_devices = draft.rdma_devices or ()
        draft.listed(_network_of(text))
        draft.hint(values.NO_DEVICE, text)
    elif match := _PROVIDER.match(text):
        draft.provider = match[1]
        draft.plugin("AWS Libfabric")
    elif match := _PLUGIN.match(text):
        draft.plugin(match[1])
    elif match := _ASKED.match(text):
        draft.variable("NCCL_NET_PLUGIN", match[1])
    else:
        _net_trouble(draft, text)


def _network_of(text: str) -> str:
    """`IB` of `NET/IB : No device found.`"""
    return text.removeprefix("NET/").split(":")[0].strip()


def _net_trouble(draft: Draft, text: str) -> None:
    if _HCA.match(text):
        draft.hint(values.GDR_NO_MODULE, text)
    elif _OFI_NONE.match(text):
        draft.hint(values.NO_PROVIDER, text)
    elif _NOT_OPENED.match(text):
        draft.hint(values.DEVICE_REFUSED, text)
    elif _COMPLETION.match(text):
        draft.hint(values.NOT_DELIVERED, text)


def _devices(draft: Draft, network: str, text: str) -> None:
    """Sockets list theirs too, as `[0]eth0:10.0.0.1<0>`, and no device found may be followed by an empty list."""
    draft.listed(network)
    found = tuple(_DEVICE.findall(text.partition("; OOB")[0]))[:64]
    if found:
        draft.rdma_devices = found
    elif network == "IB":
        draft.rdma_devices = draft.rdma_devices or ()


def _network(draft: Draft, text: str) -> None:
    if text.startswith("Using network "):
        draft.network = text.removeprefix("Using network ").strip()[:80]


def _plugin(draft: Draft, text: str) -> None:
    match = re.match(r"(?:Initialized|Assigned) NET plugin (.+?)(?: to comm)?$", text)
    if match:
        draft.plugin(match[1])


def _reason(start: str, kind: str) -> Form:
    """Of a line that begins like this, a reason of that kind; the table has only its first word."""

    def form(draft: Draft, text: str) -> None:
        if text.startswith(start):
            draft.hint(kind, text)

    return form


def _failed(draft: Draft, text: str) -> None:
    if text.startswith("Failed to initialize "):
        draft.hint(values.PLUGIN_FAILED, text)
    elif _LIBVERBS.match(text):
        draft.hint(values.NO_LIBRARY, text)


def _library(draft: Draft, text: str) -> None:
    if _LIBVERBS.match(text):
        draft.hint(values.NO_LIBRARY, text)
    elif text.startswith("Could not enable P2P"):
        draft.hint(values.P2P_FAILED, text)


def _ring(draft: Draft, text: str) -> None:
    match = _RING.match(text)
    if match:
        draft.ring_gdr = match[1] != "0"


def _version(draft: Draft, text: str) -> None:
    match = re.match(r"NCCL version (\d{1,4}\.\d{1,4}(?:\.\d{1,4})?)[\w.]{0,40}\+\w", text)
    if match:
        draft.version = match[1]


def _begins(draft: Draft, text: str) -> None:
    draft.started = True


def _links(draft: Draft, text: str) -> None:
    """The GRAPH subsystem's table: from one GPU to each other, with the kind of the way."""
    start = _FROM_GPU.match(text)
    if start:
        for end, distance in _TO_GPU.findall(text):
            one, other = sorted((_bus(start[1]), _bus(end)))
            if one != other:
                draft.link(one, other, distance)


def _bus(identity: str) -> str:
    return identity.rpartition("-")[2].lower()


_FORMS: Final[Mapping[str, Form]] = {
    "comm": _communicator,
    "Using": _network,
    "Initialized": _plugin,
    "Assigned": _plugin,
    "Failed": _failed,
    "dlvsym": _library,
    "Could": _library,
    "Count": _library,
    "GPU": _reason("GPU Direct RDMA Disabled for GPU", values.GDR_FAR),
    "P2P": _reason("P2P is disabled between", values.P2P_REFUSED),
    "Plugin": _net,
    "peer": _reason("peer query failed", values.P2P_FAILED),
    "Legacy": _reason("Legacy IPC not supported", values.NO_IPC),
    "Connected": _ring,
    "Call": _reason("Call to ibv_modify_qp failed", values.QUEUE_PAIR_FAILED),
    "Mismatched": _reason("Mismatched NCCL version", values.MISMATCH),
    "NCCL": _version,
    "cudaDriverVersion": _begins,
}
