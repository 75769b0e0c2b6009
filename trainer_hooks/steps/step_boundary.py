"""Where plain torch's steps end: which of a script's optimizers is counted. Pure."""

from __future__ import annotations

from collections.abc import Hashable


class StepBoundary:
    """One optimizer leads: its updates end the steps, and the updates of the others are part of a step. The leader is
    the first that updates, but of several that update one right after the other it is the last, and never one that
    updates more rarely than another. A step of a GAN's two optimizers is from one update of the leader to its next,
    whichever of the two it is.

    `sole_updater`: the optimizer whose next update ends a step again, and changes nothing here; None: call update() to
    know.
    """

    def __init__(self) -> None:
        self.sole_updater: Hashable = None
        self._leader: Hashable = None
        self._since: set[Hashable] = set()  # those that updated since the leader did
        self._in_a_row = False

    def set_leader(self, optimizer: Hashable) -> None:
        """This optimizer leads, whichever did so far."""
        self._leader, self.sole_updater = optimizer, None

    def update(self, optimizer: Hashable, worked: bool) -> bool:
        """`optimizer` has updated its parameters. `worked`: there was a forward or backward pass since the last update,
        so that this one does not follow right after it. Returns whether that ends the step."""
        if worked:
            self._in_a_row = False
        if self._leader is None or optimizer == self._leader or optimizer in self._since:
            self._leader = self.sole_updater = optimizer
            self._since.clear()
            self._in_a_row = True
            return True
        self.sole_updater = None
        if self._in_a_row:
            self._leader = optimizer
        else:
            self._since.add(optimizer)
        return False
