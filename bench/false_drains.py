"""Measures false drains: how many healthy nodes are taken out of service, and how many faults are caught, over ten
million simulated node-hours, by laggard and by the default rules of NHC and node-problem-detector.

    make bench-drains                              the whole benchmark
    make bench-drains ARGS=--quick                 a part of it, some minutes
    make bench-drains ARGS="--seed 12345"          nodes, events and combinations that nobody has seen
    make bench-drains ARGS="--list"                each state of which laggard is wrong
    make bench-drains ARGS="--sources"             where each event and rate comes from

docs/development/benchmark.md says what is simulated, and how it is scored."""

import argparse
import random
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.append(str(REPOSITORY / "tests"))

from common.figures import put_into  # noqa: E402
from common.refused import numbers  # noqa: E402
from drains.fleet import KINDS  # noqa: E402
from drains.report import document, sources, wrongs  # noqa: E402
from drains.score import Fleet, catches  # noqa: E402
from drains.states import CLASSES, LAGGARD, TOOLS, Judge, Shown, State, answer_all, can_have, memory_folder  # noqa: E402
from drains.stream import Node, fleet, spans  # noqa: E402

DEVELOPMENT_SEED = 20261126
WHOLE, QUICK = (1200, 4, 1500), (60, 1, 60)  # nodes, variants of each class and kind, states of several events


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--seed", type=int, default=DEVELOPMENT_SEED, help="another one gives other nodes and events")
    made.add_argument("--quick", action="store_true")
    made.add_argument(
        "--size",
        type=numbers(3),
        metavar="NODES,VARIANTS,TOGETHER",
        help="node-years, variants, states of several events",
    )
    made.add_argument("--list", action="store_true", help="print what laggard got wrong")
    made.add_argument("--sources", action="store_true", help="print where events and rates come from, and end")
    made.add_argument("--processes", type=int, default=2)
    made.add_argument("--out", type=Path, default=REPOSITORY / "out" / "bench-drains", help="where the results go")
    made.add_argument("--write", action="store_true", help="put the tables into benchmark-tables.md, too")
    return made


def apart(judge: Judge, kind: str, variants: int) -> list[State]:
    """Each variant of each event that this kind of node can have, at each of its ages, and the node without any."""
    events = [
        (kind, (Shown(event, variant, span),))
        for event in can_have(kind)
        for variant in range(variants)
        for span in range(judge.spans_of(kind, event, variant))
    ]
    return [(kind, ()), *events]


def together(judge: Judge, nodes: Sequence[Node], most: int) -> list[State]:
    """States of several events at once, each drawn by how long the fleet is in it."""
    hours: Counter[State] = Counter()
    for node in nodes:
        for span in spans(judge, node):
            if len(span.state[1]) > 1 and not span.fault:
                hours[span.state] += round(span.end - span.begin)
    rng = random.Random(f"{judge.seed} together")
    weighted = sorted(hours, key=lambda state: rng.random() ** (1 / max(hours[state], 1)), reverse=True)
    return weighted[:most]


def main(arguments: Sequence[str] | None = None) -> int:
    flags = parser().parse_args(arguments)
    if flags.sources:
        print("\n".join(sources()))
        return 0
    size = flags.size or (QUICK if flags.quick else WHOLE)
    count, variants, most = size
    folder = memory_folder()
    try:
        judge = Judge(flags.seed, folder)
        nodes = list(fleet(judge, count, variants))
        states = [state for kind in KINDS for state in apart(judge, kind, variants)] + together(judge, nodes, most)
        print(f"{len(states)} states to judge", file=sys.stderr)
        answers = answer_all(flags.seed, states, flags.processes)
        years = {tool: Fleet(judge, answers[tool], every) for tool, every in TOOLS.items()}
        for node in nodes:
            parts = spans(judge, node)
            for one in years.values():
                one.add(node, parts)
        caught = {tool: catches(judge, answers[tool], nodes, every) for tool, every in TOOLS.items()}
        year = years[LAGGARD]
        hours = sum(year.healthy_hours.values()) + year.fault_hours
        again = f"--seed {flags.seed} --size {','.join(map(str, size))}"
        made = (
            f"{hours / 1e6:.2f} million node-hours of {count} nodes, {sum(year.events.values())} events of "
            f'{len(CLASSES)} classes, {len(states)} distinct states, by `make bench-drains ARGS="{again}"`.'
        )
        report = document(years, caught, made)
        listed = "\n".join(wrongs(judge, answers[LAGGARD]))
    finally:
        shutil.rmtree(folder)
    print(report)
    if flags.list:
        print(listed)
    flags.out.mkdir(parents=True, exist_ok=True)
    (flags.out / "report.md").write_text(report)
    (flags.out / "wrong.txt").write_text(listed + "\n")
    if flags.write:
        page = REPOSITORY / "docs" / "development" / "benchmark-tables.md"
        page.write_text(put_into(page.read_text(), "drains", report))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
