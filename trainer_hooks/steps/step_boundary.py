"""Where plain torch's steps end: which of a script's optimizers is counted. Pure."""

from __future__ import annotations

from collections.abc import Hashable


class StepClock:
    """One optimizer leads: its updates end the steps, the others' are part of a step. It is the first that updates,
    but the last of several that update one right after the other, and not one that updates more rarely than another:
    of a GAN's two, a step is from one update of the one that leads to its next, whichever it is.

    `alone`: the optimizer whose next update ends a step again, and changes nothing here; None: that is to be asked.
    """

    def __init__(self) -> None:
        self.alone: Hashable = None
        self._leader: Hashable = None
        self._since: set[Hashable] = set()  # those that updated since the leader did
        self._in_a_row = False

    def lead(self, optimizer: Hashable) -> None:
        """This one, whatever was seen so far."""
        self._leader, self.alone = optimizer, None

    def update(self, optimizer: Hashable, worked: bool) -> bool:
        """`optimizer` has updated its parameters. `worked`: there was a forward or backward pass since the last update,
        so that this one does not follow right after it. Returns whether that ends the step."""
        if worked:
            self._in_a_row = False
        if self._leader is None or optimizer == self._leader or optimizer in self._since:
            self._leader = self.alone = optimizer
            self._since.clear()
            self._in_a_row = True
            return True
        self.alone = None
        if self._in_a_row:
            self._leader = optimizer
        else:
            self._since.add(optimizer)
        return False
