"""The choice of NCCL's example tuner plugin for a message: the first row that matches, and the number of channels that
it leaves. Pure, standard library only.

The plugin sets one channel before it looks for a row (plugin.c and plugin.cc, pluginGetCollInfo: `*nChannels = 1`), and
NCCL takes any number but 0 for a choice (src/enqueue.cc: `nMaxChannels == 0 ? info->nMaxChannels : nMaxChannels`). So a
message that no row matches, or a row whose channels are -1, runs on one channel; 0 keeps NCCL's own number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from laggard.nccl.tuner.table import ANY, TunerRow

Cell = tuple[str, str]
"""An algorithm and a protocol."""

NCCLS_OWN: Final = 0
"""The number of channels that leaves the choice to NCCL."""
_ONE_WAY: Final = ("broadcast", "reduce")
_GATHERING: Final = ("allgather", "reducescatter")


class Choice(NamedTuple):
    """The outcome for a message. `row`: None where none applied; NCCL then chooses algorithm and protocol."""

    row: TunerRow | None
    channels: int

    @property
    def one_channel_by_accident(self) -> bool:
        return self.channels == 1 and (self.row is None or self.row.channels != 1)


class Message(NamedTuple):
    """One collective as the plugin sees it. `size_bytes` as nccl-tests counts: for allgather and reducescatter all
    ranks' together."""

    collective: str
    size_bytes: int
    nodes: int
    ranks: int
    pipe_ops: int = 1
    reg_buff: int = 0


def possible_cells(collective: str, nodes: int, ranks: int) -> frozenset[Cell]:
    """Returns the cells that NCCL may offer for a collective (src/graph/tuning.cc): the others are marked to be
    ignored. Which of them it does offer depends on the hardware: ring with ll and simple always."""
    cells = {("ring", protocol) for protocol in ("ll", "ll128", "simple")}
    if collective == "allreduce":
        cells |= {("tree", protocol) for protocol in ("ll", "ll128", "simple")}
        cells |= {(name, "simple") for name in ("collnet_direct", "collnet_chain", "nvls", "nvls_tree")}
    elif collective in _GATHERING:
        cells |= {("nvls", "simple"), ("collnet_direct", "simple")}
        if nodes == ranks:
            cells.add(("pat", "simple"))
    return frozenset(cells)


def choose(rows: Sequence[TunerRow], message: Message, offered: Collection[Cell]) -> Choice:
    """Returns what the plugin chooses: of the rows that match, the first whose cell NCCL offers."""
    for row in rows:
        if matches(row, message) and (row.algorithm, row.protocol) in offered:
            return Choice(row, 1 if row.channels == ANY else row.channels)
    return Choice(None, 1)


def matches(row: TunerRow, message: Message) -> bool:
    pairs = (
        (row.nodes, message.nodes),
        (row.ranks, message.ranks),
        (row.pipe_ops, message.pipe_ops),
        (row.reg_buff, message.reg_buff),
    )
    return (
        row.collective == message.collective
        and row.min_bytes <= message.size_bytes <= row.max_bytes
        and all(wanted in (ANY, actual) for wanted, actual in pairs)
    )


def turning_sizes(rows: Iterable[TunerRow], collective: str, most_bytes: int) -> list[int]:
    """Returns sizes of which one lies in each interval between the bounds of rows: what holds for them holds for
    all."""
    own = [row for row in rows if row.collective == collective]
    bounds = {bound for row in own for bound in (row.min_bytes - 1, row.min_bytes, row.max_bytes, row.max_bytes + 1)}
    return sorted({0, 1, most_bytes} | {bound for bound in bounds if 0 <= bound <= most_bytes})
