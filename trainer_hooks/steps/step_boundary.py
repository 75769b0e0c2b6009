"""The ends of plain torch's steps: which of a script's optimizers is counted. Pure."""

from __future__ import annotations

from collections.abc import Hashable


class StepBoundary:
    """One optimizer leads: its updates end the steps, and the updates of the others are part of a step. The leader is
    the first that updates, but of several that update one right after the other it is the last, and never one that
    updates more rarely than another. A step of a GAN's two optimizers is from one update of the leader to its next,
    whichever of the two it is. An optimizer that is made after the leader's last update leads from its own first update
    on: with it another training begins, as the next fold of a cross-validation.

    `has_begun`: whether there was an update. Before the first one, an optimizer may only make its state: see
    pytorch/state_making.py.

    `sole_updater`: the optimizer whose next update ends a step again, and changes nothing here; None: call update() to
    know.
    """

    def __init__(self) -> None:
        self.sole_updater: Hashable = None
        self.has_begun = False
        self._leader: Hashable = None
        self._since: set[Hashable] = set()  # those that updated since the leader did
        self._made_since: set[Hashable] = set()  # those that were made since then
        self._in_a_row = False

    def add(self, optimizer: Hashable) -> None:
        """`optimizer` has just been made."""
        if self._leader is not None:
            self._made_since.add(optimizer)

    def set_leader(self, optimizer: Hashable) -> None:
        """This optimizer leads, whichever did so far."""
        self._leader, self.sole_updater = optimizer, None
        self._made_since.clear()

    def update(self, optimizer: Hashable, worked: bool) -> bool:
        """`optimizer` has updated its parameters. `worked`: there was a forward or backward pass since the last update,
        so that this one does not follow right after it. Returns whether that ends the step."""
        self.has_begun = True
        if worked:
            self._in_a_row = False
        if self._leader in (None, optimizer) or optimizer in self._since or optimizer in self._made_since:
            self._leader = self.sole_updater = optimizer
            self._since.clear()
            self._made_since.clear()
            self._in_a_row = True
            return True
        self.sole_updater = None
        if self._in_a_row:
            self._leader = optimizer
        else:
            self._since.add(optimizer)
        return False
