"""The ends of steps in a loop that says them itself, and what it names in them."""

from __future__ import annotations

from laggard.trainer_hooks.record.recorder import FORWARD, Recorder


class LoopSteps:
    """Steps and phases by the loop's own word. In a *bare* loop, into which no hook sees, a step's time that has no
    name counts as forward; in others the hooks name it."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.is_bare = False  # whether a step has begun into which no hook sees
        self._in_bare_step = False
        self._named = 0  # phases that are open, one inside the other

    def begin(self, bare: bool) -> None:
        """A step begins."""
        if bare and self._recorder.depth == 0:
            self.is_bare = self._in_bare_step = True
            self._recorder.enter(FORWARD)

    def end(self) -> None:
        """The step ends, and with it what is open in it."""
        while self._recorder.depth > 0:
            self._recorder.leave()
        self._in_bare_step, self._named = False, 0
        self._recorder.end_step(self._recorder.step + 1)

    def enter(self, phase: int) -> None:
        """The loop names what it does from here on."""
        if self._in_bare_step and self._named == 0:
            self._recorder.leave()
        self._named += 1
        self._recorder.enter(phase)

    def leave(self) -> None:
        """Ends what was named last."""
        if self._named > 0:  # else the step ended meanwhile, and all in it
            self._named -= 1
            self._recorder.leave()
            if self._in_bare_step and self._named == 0:
                self._recorder.enter(FORWARD)
