"""What NCCL's log says of each process that wrote it. Standard library only: the training process imports this."""

from __future__ import annotations

from typing import Final, NamedTuple

NO_DEVICE: Final = "no_device"
NO_LIBRARY: Final = "no_library"
NO_PROVIDER: Final = "no_provider"
PLUGIN_FAILED: Final = "plugin_failed"
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
"""Kinds of reasons that NCCL gives, and what each means."""


class Communicator(NamedTuple):
    """One rank's side of a communicator. None: the log does not say."""

    identity: str
    """`commId` (2.18 and newer), the same on all its ranks; empty: not logged."""
    rank: int
    ranks: int
    nodes: int | None = None
    """How many machines NCCL takes it to span (2.20 and newer); containers count as machines."""
    local_ranks: int | None = None
    cuda_device: int | None = None
    bus_id: str = ""
    """PCI address of the GPU as NCCL shortens it: `2a000` is 0000:2a:00.0."""
    complete: bool = False
    """Its initialisation ended well."""


class Way(NamedTuple):
    """How this process talks: channels of one kind, and to whom."""

    transport: str
    """P2P, SHM, NET or COLLNET."""
    name: str
    """Of P2P: IPC, CUMEM, MNNVL, direct pointer, common device or indirect; of NET and COLLNET: the network (IB,
    Socket, AWS Libfabric, ...); of SHM empty."""
    device: int | None
    """Number of the NIC in NCCL's own list."""
    direction: str
    """send, receive, or empty where the log does not tell (P2P, SHM)."""
    gdr: bool
    """GPUDirect RDMA: the NIC reaches GPU memory itself."""
    channels: int
    pairs: tuple[tuple[int, int], ...] = ()
    """(from, to), ranks of the communicator; not all where there are very many."""


class Hint(NamedTuple):
    """A reason that NCCL gave; `kind` is one of HINTS, `text` the first line that said so."""

    kind: str
    text: str
    times: int


class Process(NamedTuple):
    """One process as its own lines show it. Empty and None: the log does not say."""

    host: str
    pid: int
    version: str = ""
    """`2.27.5`."""
    network: str = ""
    """What `Using network` named last."""
    provider: str = ""
    """libfabric's, where the plugin of AWS told it: efa, verbs, tcp."""
    plugins: tuple[str, ...] = ()
    """Network plugins that were loaded or asked for, by name."""
    listed: tuple[str, ...] = ()
    """Networks that listed their devices, or said that they found none: IB, Socket, ..."""
    rdma_devices: tuple[str, ...] | None = None
    """As NCCL lists them: `mlx5_0:1/RoCE`. Empty: it looked and found none; None: it did not say."""
    variables: tuple[tuple[str, str], ...] = ()
    """NCCL_* that NCCL said it read, with the values."""
    communicators: tuple[Communicator, ...] = ()
    ways: tuple[Way, ...] = ()
    ring_gdr: bool | None = None
    """`use ring ... GDR` (2.24 and newer)."""
    links: tuple[tuple[str, str, str], ...] = ()
    """(bus id, bus id, distance) of GPUs, where the GRAPH subsystem is logged: NVL, PIX, PXB, PHB, SYS, ..."""
    hints: tuple[Hint, ...] = ()
    warnings: tuple[str, ...] = ()
    """NCCL WARN, but for those that became hints."""
    job_rank: int | None = None
    """The rank in the job, where somebody else than the log knows it."""
    started: bool = False
    """The log holds the beginning of a communicator: what was said before it chose its ways is there."""

    @property
    def world(self) -> Communicator | None:
        """Its largest communicator, whose ranks are most often the job's."""
        return max(self.communicators, key=lambda one: one.ranks, default=None)

    @property
    def rank(self) -> int | None:
        """Its rank in that communicator; where no line tells, the one end that all its channels have."""
        if self.job_rank is not None:
            return self.job_rank
        if self.world:
            return self.world.rank
        ends = {pair[way.direction == "receive"] for way in self.ways for pair in way.pairs}
        return ends.pop() if len(ends) == 1 else None

    @property
    def ranks(self) -> tuple[int, ...]:
        """Its ranks in its largest communicators, one for each GPU: a process may drive several."""
        if self.world is None or self.job_rank is not None:
            return () if self.rank is None else (self.rank,)
        by_gpu: dict[int | None, int] = {}
        for own in self.communicators:
            if own.ranks == self.world.ranks:
                by_gpu.setdefault(own.cuda_device, own.rank)
        return tuple(sorted(set(by_gpu.values())))

    def hint(self, *kinds: str) -> Hint | None:
        """The first of these kinds that is there, in their order."""
        return next((hint for kind in kinds for hint in self.hints if hint.kind == kind), None)

    def variable(self, name: str) -> str | None:
        return dict(self.variables).get(name)


class NcclLog(NamedTuple):
    processes: tuple[Process, ...]
    """By host and pid; lines that name neither are one process with an empty host."""
    versions: tuple[str, ...] = ()
    """Of `NCCL version` lines that name no process."""
    lines: int = 0
    """Lines of NCCL that were read."""
    torn: int = 0
    """Lines that another process wrote into, or that end early: not relied on."""
    dropped: int = 0
    """Processes left out because there were too many."""
