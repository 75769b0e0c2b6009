"""The facts that NCCL's log shows of each process that wrote to it, as values. Standard library only: training imports
this."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

NO_DEVICE: Final = "no_device"
NO_LIBRARY: Final = "no_library"
NO_PROVIDER: Final = "no_provider"
PLUGIN_FAILED: Final = "plugin_failed"
PLUGIN_MISSING: Final = "plugin_missing"
DEVICE_REFUSED: Final = "device_refused"
QUEUE_PAIR_FAILED: Final = "queue_pair_failed"
NOT_DELIVERED: Final = "not_delivered"
GDR_NO_MODULE: Final = "gdr_no_module"
GDR_FAR: Final = "gdr_far"
P2P_REFUSED: Final = "p2p_refused"
P2P_FAILED: Final = "p2p_failed"
NO_IPC: Final = "no_ipc"
MISMATCH: Final = "version_mismatch"

HINTS: Final = {
    NO_DEVICE: "a network found no device",
    NO_LIBRARY: "libibverbs could not be loaded",
    NO_PROVIDER: "libfabric offered no provider",
    PLUGIN_FAILED: "a network plugin did not start",
    PLUGIN_MISSING: "the network plugin that was asked for is not there",
    DEVICE_REFUSED: "an RDMA device or port could not be opened or queried",
    QUEUE_PAIR_FAILED: "ibv_modify_qp failed: wrong GID, or no way to the peer",
    NOT_DELIVERED: "a transfer ended with an error of the network",
    GDR_NO_MODULE: "an RDMA device cannot reach GPU memory: neither peer memory nor DMA-BUF",
    GDR_FAR: "GPU and NIC are farther apart than NCCL_NET_GDR_LEVEL allows",
    P2P_REFUSED: "the driver refuses peer-to-peer between GPUs that are close",
    P2P_FAILED: "CUDA could not enable peer-to-peer",
    NO_IPC: "CUDA IPC does not work",
    MISMATCH: "NCCL itself found ranks with another version",
}
"""The meaning of each reason that NCCL logs, by `Hint.kind`."""


class Communicator(NamedTuple):
    """One rank's side of a communicator. A field that is None is not in the log."""

    identity: str
    """`commId` (2.18 and newer), the same on all ranks of the communicator; empty: not logged."""
    rank: int
    ranks: int
    nodes: int | None = None
    """Machines that the communicator spans, as NCCL counts them (2.20 and newer); containers count as machines."""
    local_ranks: int | None = None
    cuda_device: int | None = None
    bus_id: str = ""
    """PCI address of the GPU as NCCL shortens it: `2a000` is 0000:2a:00.0."""
    complete: bool = False
    """True where the communicator's initialisation completed."""


class Connection(NamedTuple):
    """The channels of one process that use the same transport, network, device and direction."""

    transport: str
    """P2P, SHM, NET or COLLNET."""
    name: str
    """P2P: IPC, CUMEM, MNNVL, direct pointer, common device or indirect. NET and COLLNET: the network (IB, Socket,
    AWS Libfabric, ...). SHM: empty."""
    device: int | None
    """The NIC's number in NCCL's own list."""
    direction: str
    """The direction: send, receive, or empty where the log does not give it (P2P, SHM)."""
    gdr: bool
    """GPUDirect RDMA: the NIC reads and writes GPU memory itself."""
    channels: int
    """The number of channels."""
    pairs: tuple[tuple[int, int], ...] = ()
    """(from, to), ranks of the communicator; not all of them where there are very many."""


class Hint(NamedTuple):
    """A reason that NCCL logged: why it did not use a transport, or why something failed."""

    kind: str
    """A key of HINTS."""
    text: str
    """The first line that gave this reason."""
    times: int
    """The number of lines that gave it."""


class SlowTransfers(NamedTuple):
    """Transfers of one RDMA device that took longer than NCCL_IB_WQE_LATENCY_THRESHOLD_NS, as NCCL 2.31 and newer log
    them, at most one a second for each connection."""

    device: str
    stalled: bool
    """True: they had not ended when they were logged; False: they ended late."""
    lines: int
    longest_ns: int
    text: str
    """The first line."""


class NcclProcess(NamedTuple):
    """One process as its own log lines show it. What is empty or None is not in the log."""

    host: str
    pid: int
    version: str = ""
    """`2.27.5`."""
    network: str = ""
    """The network in the last `Using network` line."""
    provider: str = ""
    """libfabric's provider, as AWS's plugin logs it: efa, verbs, tcp."""
    protocol: str = ""
    """The protocol of AWS's plugin: RDMA or SENDRECV."""
    protocol_set_by: str = ""
    """The one who chose it: user, platform; empty: the plugin, for want of either."""
    networks_tried: tuple[str, ...] = ()
    """Networks that listed their devices, or reported that they found none: IB, Socket, ..."""
    rdma_devices: tuple[str, ...] | None = None
    """The RDMA devices as NCCL lists them: `mlx5_0:1/RoCE`. Empty: NCCL searched and found none; None: not logged."""
    variables: tuple[tuple[str, str], ...] = ()
    """The NCCL_* variables that NCCL logged as read, with their values."""
    communicators: tuple[Communicator, ...] = ()
    connections: tuple[Connection, ...] = ()
    ring_gdr: bool | None = None
    """True where rings use GPUDirect RDMA: `use ring ... GDR` (2.24 and newer)."""
    links: tuple[tuple[str, str, str], ...] = ()
    """(bus id, bus id, distance) of GPU pairs, where the GRAPH subsystem is logged: NVL, PIX, PXB, PHB, SYS, ..."""
    hints: tuple[Hint, ...] = ()
    warnings: tuple[str, ...] = ()
    """NCCL WARN lines, without those that became hints."""
    libfabric_plugin: tuple[int, int] | None = None
    """The version of AWS's plugin: major, minor."""
    slow_transfers: tuple[SlowTransfers, ...] = ()
    diagnostics: tuple[str, ...] = ()
    """The reports of NCCL's own diagnostics, tag and text (2.31 and newer, NCCL_RUN_DIAGNOSTICS and
    NCCL_RUN_RAS_DIAGNOSTICS), and changes of a port's speed, the last one last."""
    job_rank: int | None = None
    """The rank in the job, where it is known from elsewhere than the log."""
    started: bool = False
    """True where the log has the start of a communicator, and so whatever NCCL logged before it chose its
    connections."""

    @property
    def world(self) -> Communicator | None:
        """The process's largest communicator, whose ranks are most often the job's."""
        return max(self.communicators, key=lambda one: one.ranks, default=None)

    @property
    def rank(self) -> int | None:
        """The process's rank in `world`; without one, the rank at which all of its channels start or end."""
        if self.job_rank is not None:
            return self.job_rank
        if self.world:
            return self.world.rank
        own = {pair[connection.direction == "receive"] for connection in self.connections for pair in connection.pairs}
        return own.pop() if len(own) == 1 else None

    @property
    def ranks(self) -> tuple[int, ...]:
        """The process's ranks in its largest communicators, one for each GPU: a process may drive several GPUs."""
        if self.world is None or self.job_rank is not None:
            return () if self.rank is None else (self.rank,)
        by_gpu: dict[int | None, int] = {}
        for own in self.communicators:
            if own.ranks == self.world.ranks:
                by_gpu.setdefault(own.cuda_device, own.rank)
        return tuple(sorted(set(by_gpu.values())))

    def hint(self, *kinds: str) -> Hint | None:
        """The process's hint of the first of these kinds that it has, in the order of `kinds`."""
        return next((hint for kind in kinds for hint in self.hints if hint.kind == kind), None)

    def variable(self, name: str) -> str | None:
        """The value that NCCL read for this variable; None: not logged."""
        return dict(self.variables).get(name)


class NcclLog(NamedTuple):
    """A whole log, or as much of it as has been read."""

    processes: tuple[NcclProcess, ...]
    """The processes in order of host and pid. Lines without a host and pid count as one process with an empty host."""
    versions: tuple[str, ...] = ()
    """The versions in `NCCL version` lines without a process."""
    lines: int = 0
    """The number of lines of NCCL that were read."""
    torn: int = 0
    """The number of lines that had another process's text written into them, or end early. Their contents are not
    used."""
    dropped: int = 0
    """The number of processes that were left out, because there were more than the reader keeps."""


# Parses channel lines: `Channel 00/0 : 1[0] -> 8[0] [receive] via NET/IB/0/GDRDMA`, NCCL 2.7 to 2.32.
#
# Each rank carries the GPU's bus id (to 2.17) or its number (since 2.18) in brackets; `NET/IB/0(3)` goes through rank
# 3's NIC (PXN). More parts follow the first ones, `/flush=None` since 2.31: of a part that is not known the rest of the
# line is read. RCCL of ROCm 4.5 to 6.2 adds its communicator. But a line that is cut off within `/GDRDMA` would show
# that GPUDirect is off: it is dropped. Sources: src/transport/{p2p,shm,net,coll_net}.cc of the release tags, and the
# libraries of 2.31.2 and 2.32.3. Standard library only.

MAX_PAIRS: Final = 64

_PAIR = re.compile(r"(\d{1,9})\[[^\]]*\] -> (\d{1,9})\[[^\]]*\](?: \[(send|receive)\])?")
_ONE_END = re.compile(r"(\d{1,9}) \[(send|receive)\]")  # COLLNET: the other end is a switch
_MORE = r"((?:/[^/\s]{1,80}){0,8})(?: comm 0x[0-9a-f]{1,16} nRanks \d{1,9})?"
_P2P = re.compile(r"P2P/(direct pointer|common device|[A-Za-z]\w{2,20})" + _MORE)
_SHM = re.compile(r"(?:direct shared memory|SHM)" + _MORE)
_NET = re.compile(r"(NET|COLLNET)/([^/]{1,80})/(\d{1,9})(?:\(\d+\))?" + _MORE)
_GDR: Final = "GDRDMA"

_Key = tuple[str, str, int | None, str, bool]


def parse_channel(text: str) -> Connection | None:
    """The connection of one channel, from the text after `Channel NN : `; None for other text, or where it is cut
    off."""
    ends, via, transport = text.rpartition(" via ")
    if not via:
        return None
    pair = _PAIR.fullmatch(ends)
    one_end = None if pair else _ONE_END.fullmatch(ends)
    pairs: tuple[tuple[int, int], ...] = ()
    if pair:
        direction, pairs = pair[3] or "", ((int(pair[1]), int(pair[2])),)
    elif one_end:
        direction = one_end[2]
    else:
        return None
    if match := _NET.fullmatch(transport):
        *parts, last = match[4].split("/")
        if last and _GDR.startswith(last) and last != _GDR:
            return None
        gdr = any(part.startswith(_GDR) for part in (*parts, last))
        return Connection(match[1], match[2], int(match[3]), direction, gdr, 1, pairs)
    if match := _P2P.fullmatch(transport):
        return Connection("P2P", match[1], None, direction, False, 1, pairs)
    return Connection("SHM", "", None, direction, False, 1, pairs) if _SHM.fullmatch(transport) else None


def merge(counts: Iterable[tuple[Connection, int]]) -> tuple[Connection, ...]:
    """Merges connections that differ in their pairs alone, each given with its number of channels. The order of the
    result does not depend on the order of the log's lines."""
    sums: dict[_Key, int] = {}
    pairs: dict[_Key, set[tuple[int, int]]] = {}
    for connection, count in counts:
        key: _Key = connection[:5]
        sums[key] = sums.get(key, 0) + count
        pairs.setdefault(key, set()).update(connection.pairs)
    keys = sorted(sums, key=lambda key: (*key[:2], -1 if key[2] is None else key[2], *key[3:]))
    return tuple(Connection(*key, sums[key], tuple(sorted(pairs[key])[:MAX_PAIRS])) for key in keys)


def count_channels(connections: Iterable[Connection]) -> Mapping[str, int]:
    """The number of channels by transport, for people: {`NET/IB with GPUDirect`: 32, `P2P/CUMEM`: 16}."""
    total: dict[str, int] = {}
    for one in connections:
        label = "/".join(filter(None, (one.transport, one.name))) + (" with GPUDirect" if one.gdr else "")
        total[label] = total.get(label, 0) + one.channels
    return total
