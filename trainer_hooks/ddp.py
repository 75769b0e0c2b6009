"""DistributedDataParallel: its reducer's all_reduces pass in C++, and how long the backward pass waits for them.

The reducer launches its last all_reduce when the last gradient is there, and waits for all of them before the backward
pass ends. What comes between is the exposed wait. Which parameter's gradient comes last is learned from hooks on all
of them, which go once it is known; one stays. Gradients and buckets are not touched, no communication hook is taken.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, Final

from laggard.trainer_hooks.groups import Groups
from laggard.trainer_hooks.recorder import Launched, Recorder, clock
from laggard.trainer_hooks.unseen import Unseen

_PLACES: Final = itertools.count()  # not the id() of something, which another may have later
_AGREEING: Final = 2  # backward passes in a row with the same last gradient, before it is believed


class Reducer:
    """One DDP module's."""

    def __init__(self, module: Any, recorder: Recorder, groups: Groups, unseen: Unseen) -> None:
        self._module = weakref.ref(module)
        self._group = module.process_group
        self._place = "ddp", next(_PLACES)
        self._recorder = recorder
        self._groups = groups
        self._unseen = unseen
        self._handles: dict[int, Any] = {}
        self._last = (-1, 0)  # the parameter whose gradient came last, and when
        self._believed = -1
        self._agreeing = 0
        self._watch()

    def _watch(self, only: int | None = None) -> None:
        """Has hooks on all parameters, or on one."""
        module = self._module()
        parameters = [each for each in module.module.parameters() if each.requires_grad] if module else []
        places = set(range(len(parameters)) if only is None else [only])
        for place in set(self._handles) - places:
            self._handles.pop(place).remove()
        for place in places - set(self._handles):
            self._handles[place] = parameters[place].register_post_accumulate_grad_hook(self._hook(place))

    def _hook(self, place: int) -> Any:
        def arrived(_: Any) -> None:
            self._last = place, clock()

        def nothing(_: Any) -> None:
            return None

        arrived._torchdynamo_inline = nothing  # type: ignore[attr-defined]
        return arrived

    @property
    def arrived(self) -> int:
        """When a gradient came last."""
        return self._last[1]

    def after_backward(self, began: int, counts: bool) -> None:
        """The backward pass that began then is about to be left. `counts`: its last gradient was this module's."""
        place, arrived = self._last
        if arrived >= began:
            end = clock()
            handed = self._take_handed_over(began)
            last = max([arrived, *(entry[2] for entry in handed)])  # the last launch
            waited = end - last if counts else 0
            for entry in handed:
                word, log, issued, size, _ = entry
                log.put((word, issued, end, waited if entry is handed[-1] else 0, size))
            found = self._unseen.settle(arrived, end, 0 if handed else waited, self._group, self._place)
            if found or handed:
                self._recorder.waits.append(waited)
            self._learn(place)
        elif self._believed >= 0 and self._unseen.settle(group=self._group, where=self._place):
            # there are all_reduces and that gradient came not: another is the last by now
            self._believed, self._agreeing = -1, 0
            self._watch()

    def _learn(self, place: int) -> None:
        self._agreeing = self._agreeing + 1 if place == self._believed else 1
        self._believed = place
        if self._agreeing == _AGREEING:
            self._watch(place)

    def _take_handed_over(self, began: int) -> list[Launched]:
        """Works that a communication hook in Python launched and left to the reducer to wait for: it has, by now."""
        return self._recorder.take_unwaited(began, {id(log) for _, log in self._groups.lanes(self._group)})


class Reducers:
    """Those of a process, by module."""

    def __init__(self, recorder: Recorder, groups: Groups, unseen: Unseen) -> None:
        self._recorder = recorder
        self._groups = groups
        self._unseen = unseen
        self._known: weakref.WeakKeyDictionary[Any, Reducer] = weakref.WeakKeyDictionary()

    def __contains__(self, module: Any) -> bool:
        return module in self._known

    def add(self, module: Any) -> None:
        if module not in self._known:
            self._known[module] = Reducer(module, self._recorder, self._groups, self._unseen)

    def after_backward(self, began: int) -> None:
        reducers = list(self._known.values())
        last = max((reducer.arrived for reducer in reducers), default=0)
        for reducer in reducers:
            reducer.after_backward(began, counts=reducer.arrived == last)
