"""The waits for functional collectives (DTensor, FSDP2's gradient norm), which C++ makes and Python waits for.

Eager Python waits in `_functional_collectives.wait_tensor`, to which AsyncCollectiveTensor comes, too. That is hooked.
Compiled graphs wait in C++, where no hook sees it: where C++ makes collectives step after step for which nobody was
seen to wait, the rank says so (the fact `unseen_waits`), and its own time is not taken for work.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from threading import get_ident
from typing import Any, Final

from laggard.rankfile.fact_names import UNSEEN_WAITS
from laggard.trainer_hooks.record.facts import Facts
from laggard.trainer_hooks.record.native_waits import Wait
from laggard.trainer_hooks.record.recorder import Recorder, clock

_WAITS_LIMIT: Final = 4096  # between two checks
_DECAY: Final = 0.75  # of the share of earlier checks, at each later one
_MANY_UNSEEN: Final = (
    2.0  # three checks in a row with unseen waits, or most of them for longer: not what happens once or twice
)
_FEW_UNSEEN: Final = 0.5


class FunctionalWaits:
    """The waits of one process that no collective's own record counts."""

    def __init__(self, recorder: Recorder, facts: Facts, training_thread: Callable[[], int]) -> None:
        """`training_thread` gives the number of the training thread."""
        self._recorder = recorder
        self._facts = facts
        self._training_thread = training_thread
        self._waits: list[Wait] = []
        self._count = 0
        self._unseen = 0.0

    def hook(self, module: Any) -> None:
        """Hooks torch.distributed._functional_collectives; torch's compiler goes on with the function as it was."""
        module.wait_tensor = self._timed(module.wait_tensor)

    def _timed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder, training_thread = self._recorder, self._training_thread
        # Autograd's threads, and no others, are inside a graph task: they work for the training thread's backward pass.
        graph_task: Callable[[], int] = sys.modules["torch"]._C._current_graph_task_id

        @functools.wraps(original)
        def wait_tensor(tensor: Any) -> Any:
            if get_ident() != training_thread() and graph_task() < 0:
                return original(tensor)
            self._count += 1
            if recorder.live.device is not None:
                return recorder.live.device.time_native_wait(original, tensor)
            began = clock()
            result = original(tensor)
            self._waited(began, clock())
            return result

        wait_tensor._torchdynamo_inline = original  # type: ignore[attr-defined]
        return wait_tensor

    def _waited(self, began: int, ended: int) -> None:
        try:
            self._recorder.events.waited(ended - began)
            if len(self._waits) < _WAITS_LIMIT:
                self._waits.append((began, ended))
        except Exception:
            self._recorder.totals.errors += 1

    def take(self) -> list[Wait]:
        """The waits on the host's clock since the last time."""
        waits, self._waits = self._waits, []
        return waits

    def checked(self, made: int) -> None:
        """Takes note, at the end of a step, that C++ made so many collectives outside of DDP since the last one. Sets
        the fact where it does so again and again and nobody is seen to wait for them."""
        unseen, self._count = made > self._count, 0
        self._unseen = self._unseen * _DECAY + unseen
        if self._unseen > _MANY_UNSEEN:
            self._facts.set(UNSEEN_WAITS, True)
        elif self._unseen < _FEW_UNSEEN:
            self._facts.set(UNSEEN_WAITS, None)
