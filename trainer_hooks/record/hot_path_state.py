"""The state of a recorder that the hot path reads and writes without a call."""

from __future__ import annotations

from array import array

from laggard.rankfile.layout import LIVE_WORDS
from laggard.trainer_hooks.record.device_timer import DeviceTimer
from laggard.trainer_hooks.record.events import Launch
from laggard.trainer_hooks.record.pending import PendingWork


class HotPathState:
    """The state of one recorder that the hook of a collective needs: a method call would cost a tenth of what the whole
    hook may. Everybody may read these; who may change them stands with each.

    `words`: the live words of the rank file. The hooks of collectives store the one in flight there, the recorder the
    phase; the recorder replaces the memory as a whole.
    `pending`: the collectives that nobody has waited for yet; the hooks of collectives add and remove them.
    `device`: what times collectives on a device, once the process computes on one. Set by the recorder.
    `step`: the step that the training thread is in; the aggregator's own may lie behind it. Set by the recorder.
    """

    __slots__ = ("device", "pending", "step", "words")

    def __init__(self, words: memoryview, pending: PendingWork[Launch]) -> None:
        self.words = words
        self.pending = pending
        self.device: DeviceTimer | None = None
        self.step = 0


def unread_words() -> memoryview:
    """Live words that nobody reads: for a recorder before it has a rank file, and after."""
    return memoryview(array("q", [0] * LIVE_WORDS))
