"""The functions in which a slow rank spends more time than its peers: shares of samples compared, function by function.

Every rank is sampled for the same time, so a function's share of a rank's samples is its share of the rank's time. A
slow rank spends in its slow function what its peers spend waiting. So the function whose share exceeds the peers' most
is the answer, and of the functions on one path the deepest that still explains it: the caller of a slow function has
the same excess. Standard library only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from laggard.stacks.frames import Frame, is_library, own_frame, short_text, waits_for_children
from laggard.stacks.sampled import Counted, Sampled, Thread

MIN_SAMPLES: Final = 20
"""The least samples of a rank about which anything is said: with fewer a share of one half is then off by a fifth and
more."""

MIN_EXCESS: Final = 0.05
"""The least difference of shares that is told. With 200 samples a rank, the shares of one function in healthy ranks
differ by less (standard error of a share of 0.1: 0.021)."""

_STANDARD_ERRORS: Final = 3.0
_AS_MUCH: Final = 0.8  # of the largest excess: a deeper function with that much is the better answer


class Place(NamedTuple):
    """A function, without the line that it is at."""

    function: str
    file: str


class Difference(NamedTuple):
    """A function in which a rank spends more of its time than its peers. `frame`: the function, at its most frequent
    line; `share` and `peers_share`: of all samples, None: they told nothing; `phase`: in which most of them were,
    empty: in none; `calls`: the function that most of them had called from there, None: none; `caller`: the script's
    own function from which it was called, where it is a library's; `where`: the child processes that it was seen in,
    empty: the training thread; `stack`: the most frequent stack with it."""

    frame: Frame
    share: float
    peers_share: float | None
    phase: str
    calls: Frame | None
    caller: Frame | None
    where: str
    stack: Counted

    def text(self, whom: str = "peers") -> str:
        """Such as `forward: 71 % of the samples in tokenize (data.py:88); peers 2 %`. `whom`: what the peers are."""
        phase = f"{self.phase.replace('_', ' ')}: " if self.phase else ""
        calls = f", which calls {short_text(self.calls)}" if self.calls and not self.caller else ""
        caller = f", called in {short_text(self.caller)}" if self.caller else ""
        where = f" of {self.where}" if self.where else ""
        return f"{phase}{_percent(self.share)} of the samples{where} in {short_text(self.frame)}{calls}{caller}" + (
            f"; {whom} {_percent(self.peers_share)}" if self.peers_share is not None else ""
        )


def difference(suspect: Sampled, peers: Sequence[Sampled]) -> Difference | None:
    """Returns what the suspect does more than its peers, in its training thread; where that waits for its children, in
    these. None: too few samples, or no difference beyond what healthy ranks have."""
    found = _of_threads(suspect.training, [peer.training for peer in peers], "")
    if found is None or not waits_for_children(found.stack.frames):
        return found
    children = _together(suspect, "its child processes")
    others = [_together(peer, "") for peer in peers]
    inner = _of_threads(children, [each for each in others if each.samples], children.name)
    inner = inner or _most_frequent(children)
    return inner._replace(phase=found.phase) if inner else found


def _of_threads(suspect: Thread, peers: Sequence[Thread], where: str) -> Difference | None:
    compared = [peer for peer in peers if peer.samples >= MIN_SAMPLES]
    if suspect.samples < MIN_SAMPLES or not compared:
        return None
    own = shares(suspect.stacks, without_waits=True)
    others = [shares(peer.stacks) for peer in compared]
    excess = {place: share - _mean(other.get(place, 0.0) for other in others) for place, share in own.items()}
    clear = {
        place: value
        for place, value in excess.items()
        if value >= max(MIN_EXCESS, _STANDARD_ERRORS * _error(own[place], suspect.samples))
    }
    if not clear:
        return None
    place = _deepest(clear, suspect.stacks)
    return _described(place, suspect, own[place], own[place] - excess[place], where)


def shares(stacks: Iterable[Counted], without_waits: bool = False) -> dict[Place, float]:
    """The share of the samples in which each function was anywhere on the stack, at its innermost place or above.
    `without_waits`: samples in a collective count as samples, and in no function."""
    counts: Counter[Place] = Counter()
    total = 0
    for each in stacks:
        total += each.times
        if without_waits and each.waits:
            continue
        for place in {Place(frame.function, frame.file) for frame in each.frames}:
            counts[place] += each.times
    return {place: count / total for place, count in counts.items()} if total else {}


def _deepest(excess: dict[Place, float], stacks: Iterable[Counted]) -> Place:
    """Returns, of the functions with about the largest excess, the deepest one of the script's own, since that is what
    its author can change; where all are a library's, the one that the script called."""
    most = max(excess.values())
    near = {place for place, value in excess.items() if value >= _AS_MUCH * most}
    depth: Counter[Place] = Counter()
    own: set[Place] = set()
    for each in stacks:
        for level, frame in enumerate(reversed(each.frames)):
            place = Place(frame.function, frame.file)
            if place in near:
                depth[place] = max(depth[place], level)
                if not is_library(frame):
                    own.add(place)
    if own:
        return max(own, key=lambda place: (depth[place], excess[place]))
    return min(near, key=lambda place: (depth[place], -excess[place]))


def _described(place: Place, thread: Thread, share: float, peers_share: float | None, where: str) -> Difference:
    lines: Counter[Frame] = Counter()
    phases: Counter[str] = Counter()
    called: Counter[Frame | None] = Counter()
    best: Counted | None = None
    for each in thread.stacks:
        index = next((i for i, frame in enumerate(each.frames) if Place(frame.function, frame.file) == place), None)
        if index is None:
            continue
        lines[each.frames[index]] += each.times
        phases[each.phase] += each.times
        called[each.frames[index - 1]._replace(line=None) if index else None] += each.times
        best = each if best is None or each.times > best.times else best
    assert best is not None  # the place comes from these stacks
    phase, calls = phases.most_common(1)[0][0], called.most_common(1)[0]
    frame = lines.most_common(1)[0][0]
    most_called = calls[0] if 2 * calls[1] > sum(called.values()) else None
    own = own_frame(best.frames)
    caller = own if is_library(frame) and not is_library(own) else None
    return Difference(frame, share, peers_share, phase, most_called, caller, where, best)


def _together(sampled: Sampled, name: str) -> Thread:
    """The child processes as one thread: the workers of a loader do the same."""
    return Thread(name, tuple(stack for thread in sampled.threads[1:] if thread.pid for stack in thread.stacks))


def _most_frequent(children: Thread) -> Difference | None:
    """Returns, where peers tell nothing of their children, in which of the script's own functions these are most
    often."""
    own = {
        Place(frame.function, frame.file) for each in children.stacks for frame in each.frames if not is_library(frame)
    }
    found = {place: share for place, share in shares(children.stacks).items() if place in own}
    if not found or children.samples < MIN_SAMPLES:
        return None
    place = _deepest(found, children.stacks)
    return _described(place, children, found[place], None, children.name)


def _mean(values: Iterable[float]) -> float:
    kept = list(values)
    return sum(kept) / len(kept)


def _error(share: float, samples: int) -> float:
    """The standard error of a share (binomial)."""
    return float((share * (1 - share) / samples) ** 0.5)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
