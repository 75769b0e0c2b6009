"""The functions in which a slow rank spends more time than its peers: shares of samples compared, function by function.

Every rank is sampled for the same time, so a function's share of a rank's samples is its share of the rank's time. A
slow rank spends in its slow function what its peers spend waiting. So the function whose share exceeds the peers' most
is the answer, and of the functions on one path the deepest that still explains it: the caller of a slow function has
the same excess. Standard library only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from laggard.stacks.sampled import (
    Counted,
    Frame,
    Sampled,
    Thread,
    collective_of,
    inner_place_text,
    is_library,
    own_frame,
    place_text,
    short_text,
    waits_for_children,
)

MIN_SAMPLES: Final = 20
"""The least samples of a rank about which anything is said: with fewer a share of one half is then off by a fifth and
more."""

MIN_EXCESS: Final = 0.05
"""The least difference of shares that is told. With 200 samples a rank, the shares of one function in healthy ranks
differ by less (standard error of a share of 0.1: 0.021)."""

MAX_PEERS: Final = 8
"""The most ranks that one is compared with."""

_MAX_COMPARED: Final = 16
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


def differences(sampled: Mapping[int, Sampled]) -> dict[int, Difference]:
    """The functions that ranks are in more than others, the largest differences first. Of many ranks
    those are compared whose shares differ most from the mean."""
    enough = {rank: each for rank, each in sampled.items() if each.training.samples >= MIN_SAMPLES}
    able = {rank: shares(each.training.stacks) for rank, each in enough.items()}
    if len(able) < 2:
        return {}
    mean: dict[Place, float] = {}
    for own in able.values():
        for place, share in own.items():
            mean[place] = mean.get(place, 0.0) + share / len(able)
    waiting = {rank: _waiting_share(sampled[rank]) for rank in able}
    usual = sum(waiting.values()) / len(waiting)
    # Who makes the others wait waits the least itself; then whose time is spent elsewhere.
    apart = {
        rank: max(usual - waiting[rank], max((share - mean[place] for place, share in own.items()), default=0.0) / 2)
        for rank, own in able.items()
    }
    suspects = sorted(apart, key=lambda rank: (-apart[rank], rank))[:_MAX_COMPARED]
    found = {}
    for suspect in suspects:
        others = sorted(set(able) - {suspect}, key=lambda rank: (apart[rank], abs(rank - suspect)))[:MAX_PEERS]
        told = difference(sampled[suspect], [sampled[rank] for rank in others])
        if told is not None:
            found[suspect] = told
    working = {rank: told for rank, told in found.items() if not collective_of(told.stack.frames)}
    # Who waits for a slow rank within backward differs from it as much as it does from them.
    return dict(sorted((working or found).items(), key=lambda item: (item[1].peers_share or 0.0) - item[1].share))


def _waiting_share(sampled: Sampled) -> float:
    stacks = sampled.training.stacks
    waits = sum(each.times for each in stacks if each.waits or collective_of(each.frames))
    return waits / max(1, sampled.training.samples)


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
    return described(place, suspect, own[place], own[place] - excess[place], where)


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


def described(place: Place, thread: Thread, share: float, peers_share: float | None, where: str = "") -> Difference:
    """What is to be said of a function that is on stacks of the thread."""
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
    return described(place, children, found[place], None, children.name)


def _mean(values: Iterable[float]) -> float:
    kept = list(values)
    return sum(kept) / len(kept)


def _error(share: float, samples: int) -> float:
    """The standard error of a share (binomial)."""
    return float((share * (1 - share) / samples) ** 0.5)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


# The places at which the ranks of a job stand, told once for all that stand alike: 15 ranks in all_reduce at
# train.py:120, rank 9 in torch.save at ckpt.py:41. Standard library only.


class Standing(NamedTuple):
    """Ranks whose training threads stand at one place. `waits`: the collective that they are in, empty: in none;
    `stack`: of the first of them."""

    ranks: tuple[int, ...]
    place: str
    waits: str
    stack: Counted


def standings(sampled: Iterable[Sampled]) -> tuple[Standing, ...]:
    """Returns the ranks by the place that each stood at most often; first those that are in no collective, the fewest
    ranks first: whom the others wait for is among them."""
    seen = [(each.rank, *_stack_of(each)) for each in sampled]
    found = _grouped(seen, _place)
    if len(found) == 1 and not next(iter(found))[1]:  # one line of the script, from which they went on to other places
        found = _grouped(seen, _inner_place)
    told = [
        Standing(tuple(sorted(rank for rank, _ in ranks)), place, waits, min(ranks, key=lambda it: it[0])[1])
        for (place, waits), ranks in found.items()
    ]
    return tuple(sorted(told, key=lambda it: (bool(it.waits), len(it.ranks), it.ranks)))


def _grouped(
    seen: Iterable[tuple[int, Counted, str]], place: Callable[[Counted, str, str], str]
) -> dict[tuple[str, str], list[tuple[int, Counted]]]:
    found: dict[tuple[str, str], list[tuple[int, Counted]]] = {}
    for rank, stack, whose in seen:
        waits = stack.waits or collective_of(stack.frames)
        found.setdefault((place(stack, waits, whose), waits), []).append((rank, stack))
    return found


def _stack_of(sampled: Sampled) -> tuple[Counted, str]:
    """Returns where the rank stands, and whose stack that is, empty: its own. A rank that waits for its child processes
    stands where one of these is in the script's own code."""
    own = sampled.training.stacks[0]
    if waits_for_children(own.frames):
        for thread in sampled.threads[1:]:
            if thread.pid and thread.stacks and not is_library(own_frame(thread.stacks[0].frames)):
                return thread.stacks[0], "its child process "
    return own, ""


def _place(stack: Counted, waits: str, whose: str) -> str:
    if waits:
        return f"{waits}, called in {short_text(own_frame(stack.frames))}"
    return whose + place_text(stack.frames)


def _inner_place(stack: Counted, waits: str, whose: str) -> str:
    return whose + inner_place_text(stack.frames)


def standing_beside(rank: int, all_of: Sequence[Standing]) -> tuple[Standing | None, Standing | None]:
    """Returns where the rank stands, and where most of the others wait for it; None where nothing is known."""
    own = next((each for each in all_of if rank in each.ranks), None)
    others = [each for each in all_of if each is not own]
    waiting = max(others, key=lambda each: (bool(each.waits), len(each.ranks)), default=None)
    return own, waiting


def differing_from(own: Counted, other: Counted) -> int:
    """Returns how many of `own`'s frames, from the innermost one on, are not on the other stack: both came the same way
    down to there."""
    common = 0
    for mine, others in zip(reversed(own.frames), reversed(other.frames), strict=False):
        if (mine.function, mine.file) != (others.function, others.file):
            break
        common += 1
    return len(own.frames) - common
