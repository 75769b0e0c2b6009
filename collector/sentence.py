"""A location in words: the answer in one sentence, then what supports it. The page and `laggard locate` say the same."""

from __future__ import annotations

from collections.abc import Sequence

from laggard.model import Culprit, Location, Verdict


def sentence(location: Location) -> str:
    """The answer. Ends with a full stop and holds no line break, whatever text the location came with."""
    if location.culprits:
        return _one_line(_accusation(location))
    if location.verdict is Verdict.OK:
        return f"No rank is slow: {_count(location.ranks_seen, 'rank')}, {_count(_steps(location), 'step')} looked at."
    reason = location.notes[0].text.rstrip(".") if location.notes else "nothing is known about any rank"
    start = "Something is wrong" if location.verdict is Verdict.FAIL else "Cannot tell"
    return _one_line(f"{start}: {reason}.")


def details(location: Location) -> list[str]:
    """Lines of evidence, one culprit after the other, then the notes that the sentence has not already told."""
    lines = []
    for culprit in location.culprits:
        named = f"{_capital(who(culprit))}: " if len(location.culprits) > 1 else ""
        lines += [f"{named}{line}" for line in culprit.evidence]
        if culprit.findings:
            lines.append(f"{named}its node reports {', '.join(culprit.findings)}")
        if culprit.victims:
            lines.append(
                f"{named}{ranks_text(culprit.victims)} {'waits' if len(culprit.victims) == 1 else 'wait'} for it"
            )
    told = not location.culprits and location.verdict is not Verdict.OK
    lines += [note.text for note in location.notes[1 if told else 0 :]]
    return [_one_line(line) for line in lines]


def who(culprit: Culprit) -> str:
    """The machine or link, in the middle of a sentence: `rank 2 on n1`, `the link n1 mlx5_0 to n2 mlx5_0`."""
    if culprit.kind == "slow_link" and culprit.link:
        ends = (" ".join(filter(None, (end.get("node"), end.get("device")))) or "?" for end in culprit.link)
        return "the link " + " to ".join(ends)
    if culprit.kind == "slow_host" and culprit.node:
        return f"host {culprit.node}" + (f" ({ranks_text(culprit.ranks)})" if culprit.ranks else "")
    place = f" on {culprit.node}" if culprit.node else ""
    return (ranks_text(culprit.ranks) if culprit.ranks else culprit.device or "a machine") + place


def ranks_text(ranks: Sequence[int]) -> str:
    """`rank 2`, `ranks 0-3 and 7`, `ranks 0, 2, 4, 6 and 27 more`."""
    runs = _runs(sorted(set(ranks)))
    words = [str(first) if first == last else f"{first}-{last}" for first, last in runs[:4]]
    rest = sum(last - first + 1 for first, last in runs[4:])
    if rest:
        words.append(f"{rest} more")
    joined = " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else "none"
    return f"{'rank' if len(set(ranks)) == 1 else 'ranks'} {joined}"


def _accusation(location: Location) -> str:
    first, *others = location.culprits
    clauses = [f"{_capital(who(first))} {_deed(first)}"]
    cost = _cost(first, location)
    if cost:
        clauses[0] += f": {cost}"
    if first.recoverable_ratio:
        clauses.append(f"fixing it would save {first.recoverable_ratio:.0%} of the step time".replace("%", " %"))
    text = "; ".join(clauses) + "."
    if others:
        also = f"{len(others)} more culprits, the next" if len(others) > 1 else "One more culprit"
        text += f" {also}: {who(others[0])}."
    return text


def _deed(culprit: Culprit) -> str:
    verb = "are" if len(culprit.ranks) > 1 and culprit.kind not in ("slow_host", "slow_link") else "is"
    if culprit.kind == "hung":
        return f"{verb} hung" + (f" in {_place(culprit)}" if _place(culprit) else "")
    if culprit.kind == "slow_input":
        return f"{verb} slow to get {'their' if verb == 'are' else 'its'} input"
    return f"{verb} slow" + (f" in {_place(culprit)}" if _place(culprit) and culprit.kind != "slow_link" else "")


def _place(culprit: Culprit) -> str:
    if culprit.phase == "collective":
        return "a collective" + (f" of group {culprit.group}" if culprit.group else "")
    return culprit.phase or ""


def _cost(culprit: Culprit, location: Location) -> str:
    """What it costs, in seconds of each step where the window tells a step's length, else as a ratio."""
    if culprit.kind == "hung":
        return "the others wait for " + ("them" if len(culprit.ranks) > 1 else "it")
    peers = "others" if culprit.kind in ("slow_link", "slow_host") else "peers"
    steps = _steps(location)
    if steps and location.window.seconds > 0 and culprit.recoverable_ratio:
        seconds = culprit.recoverable_ratio * location.window.seconds / steps
        return f"{_seconds(seconds)} more than its {peers} in each step"
    if culprit.slowdown_ratio:
        return f"{culprit.slowdown_ratio:.2f} times the time of its {peers}"
    return ""


def _steps(location: Location) -> int:
    window = location.window
    if window.first_step is None or window.last_step is None:
        return 0
    return window.last_step - window.first_step + 1


def _seconds(value: float) -> str:
    """Two significant digits, in the unit that a reader would choose."""
    if value >= 0.0995:
        return f"{value:.2f} s" if value < 9.95 else f"{value:.0f} s"
    return f"{value * 1e3:.2g} ms" if value * 1e3 < 99.5 else f"{value * 1e3:.0f} ms"


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _one_line(text: str) -> str:
    """Names come from other machines: whatever would break the line or hide text becomes a space."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
