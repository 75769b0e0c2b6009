"""The tables of what each rule is worth, and the thresholds that decide nothing. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from quality.report import table

from ablation.asked import Answer
from ablation.run import AGAIN, FIRST, Kept, Plan
from ablation.thresholds import Threshold

WON, LOST, CHANGED = "won", "lost", "changed"


class Worth(NamedTuple):
    """What one rule decided. `asked`, `acted`: in how many cases. `by_set`: cases won, lost and changed otherwise, by
    what made them and which of these. `accused`, `spared`: how many more, and fewer, innocents are accused without it;
    `failed`: what locate says then, of the first case in which it fails."""

    rule: str
    asked: int
    acted: int
    by_set: Counter[tuple[str, str]]
    accused: int
    spared: int
    failed: str

    def cases(self, what: str) -> int:
        return sum(count for (_, which), count in self.by_set.items() if which == what)

    @property
    def order(self) -> tuple[int, int, int, str]:
        """The most worth first."""
        worth = self.cases(WON) - self.cases(LOST)
        return -worth, self.spared - self.accused, -self.cases(CHANGED), self.rule


def set_of(case: str) -> str:
    """What made a case: `fluid` of `fluid/nic/3`."""
    return case.partition("/")[0]


def worths(rules: Iterable[str], answers: Sequence[Answer]) -> list[Worth]:
    return sorted((_worth(rule, answers) for rule in rules), key=lambda each: each.order)


def _worth(rule: str, answers: Sequence[Answer]) -> Worth:
    by_set: Counter[tuple[str, str]] = Counter()
    accused = spared = 0
    failed = ""
    for answer in answers:
        other = answer.without.get(rule)
        if other is None:
            continue
        what = CHANGED if other.right == answer.right else WON if answer.right else LOST
        by_set[set_of(answer.case), what] += 1
        accused += max(0, other.innocents - answer.innocents)
        spared += max(0, answer.innocents - other.innocents)
        failed = failed or other.failed and f"{answer.case}: {other.failed}"
    asked = sum(rule in answer.asked for answer in answers)
    acted = sum(rule in answer.acted for answer in answers)
    return Worth(rule, asked, acted, by_set, accused, spared, failed)


def rules_table(found: Sequence[Worth]) -> list[str]:
    sets = sorted({which for each in found for which, _ in each.by_set})
    head = ("rule", "asked", "acts", "won", "lost", "changed", "innocents without it", *sets)
    rows = (
        (
            each.rule,
            each.asked,
            each.acted,
            *(each.cases(what) for what in (WON, LOST, CHANGED)),
            f"+{each.accused} -{each.spared}" if each.accused or each.spared else "",
            *(_of_set(each, which) for which in sets),
        )
        for each in found
        if each.by_set
    )
    return table(head, rows)


def _of_set(each: Worth, which: str) -> str:
    """Won, lost and changed otherwise: `3/0/1`."""
    counts = [each.by_set[which, what] for what in (WON, LOST, CHANGED)]
    return "/".join(map(str, counts)) if any(counts) else ""


def text(plan: Plan, kept: Kept) -> list[str]:
    """The whole report."""
    answers = kept.of(FIRST)
    found = worths((rule.name for rule in plan.rules), answers)
    counts = Counter(set_of(answer.case) for answer in answers)
    right = Counter(set_of(answer.case) for answer in answers if answer.right)
    of_sets = ", ".join(f"{which} {right[which]} of {count}" for which, count in sorted(counts.items()))
    return [
        f"{len(answers)} cases, of which laggard is right in {sum(right.values())}: {of_sets}.",
        "",
        *rules_table(found),
        "",
        *_listed("Decides nothing, though asked", [_idle(each) for each in found if each.asked and not each.by_set]),
        *_listed("Never asked", [each.rule for each in found if not each.asked]),
        *_listed("Without it the rest fails", [f"{each.rule} ({each.failed})" for each in found if each.failed]),
        *_of_thresholds(plan, kept),
    ]


def _idle(each: Worth) -> str:
    acts = f"acts in {each.acted}" if each.acted else "never acts"
    return f"{each.rule} (asked in {each.asked}, {acts})"


def _of_thresholds(plan: Plan, kept: Kept) -> Iterator[str]:
    if not plan.thresholds:
        return
    left = kept.left(plan.thresholds)
    read = {name for answer in kept.answers.values() for name in answer.read}
    reached = [each for each in left if str(each) in read]
    factors = " and ".join(f"x{factor:g}" for factor in plan.factors)
    again = len(kept.of(AGAIN))
    yield (
        f"{len(plan.thresholds)} thresholds, each moved by {factors}: {len(plan.thresholds) - len(left)} decide a case;"
        f" {again} cases were asked twice, in other groups."
    )
    yield ""
    unread = [each for each in left if str(each) not in read]
    yield from _listed("Decide nothing, though read", _by_module(reached), len(reached))
    yield from _listed("Never read", _by_module(unread), len(unread))


def _by_module(thresholds: Iterable[Threshold]) -> list[str]:
    """`slow.moments: LIVE_SECONDS, LONG_STEPS` for each module."""
    names: dict[str, list[str]] = {}
    for each in thresholds:
        module, _, name = str(each).partition(":")
        names.setdefault(module, []).append(name)
    return [f"{module}: {', '.join(each)}" for module, each in names.items()]


def _listed(head: str, items: Sequence[str], count: int | None = None) -> list[str]:
    """A list below `head`, with how many there are; empty without any."""
    told = f"{head} ({len(items) if count is None else count}):"
    return [told, "", *(f"- {each}" for each in items), ""] if items else []
