"""Writes simulated cases for `laggard locate --trace OUT/trace`, or for any other tool: recordings, and truth.json
beside them.

    python bench/simulate.py OUT --layout dp8 --fault slow_gpu --size 0.1 --seed 7 --form host
    python bench/simulate.py OUT --layout dp4_tp8_pp4 --innocent stage_imbalance --seeds 10
    python bench/simulate.py OUT --layout dp=8,tp=2,pp=2,schedule=1f1b,micro=4 --fault slow_nic --size 0.2
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from simulator.case import FORMS, Case, simulate
from simulator.faults import FAULTS, Fault, Unlocatable, When
from simulator.innocents import INNOCENTS, NOISES
from simulator.layout import LAYOUTS
from simulator.noise import parse_lasting
from simulator.recording import write


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("out", type=Path, help="a case lies in OUT, or with --seeds in OUT/SEED")
    made.add_argument(
        "--layout", default="dp8", help=f"{', '.join(LAYOUTS)}; or dp=8,tp=2,...; or dp64,nics_per_node=1"
    )
    made.add_argument("--form", default="host", choices=FORMS)
    made.add_argument("--steps", type=int, default=40)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--seeds", type=int, help="as many cases, from --seed on")
    made.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="KIND[,size=0.1][,rank=3][,phase=forward][,onset=20][,every=3.5][,share=0.3]",
        help=f"may be given several times; KIND: {', '.join(FAULTS)}",
    )
    made.add_argument("--size", type=float, default=0.1, help="of faults that give none: 0.1 is a step 10 %% longer")
    made.add_argument("--innocent", action="append", default=[], choices=(*INNOCENTS, *NOISES))
    made.add_argument(
        "--lasting",
        default="",
        metavar="[rho=0.95][,sd=0.02][,lengths=0.08][,data=0.08]",
        help="noise that lasts: of ranks (sd) and of their data's lengths, correlated by rho, and of data for good",
    )
    made.add_argument("--clock-offset", type=float, default=3.0, help="seconds by which clocks are off at most")
    made.add_argument("--clock-drift", type=float, default=15.0, help="parts in a million")
    return made


def parse_fault(text: str, size: float) -> Fault:
    """Reads KIND,KEY=VALUE,... Raises ValueError with what is wrong."""
    kind, *rest = text.split(",")
    if kind not in FAULTS:
        raise ValueError(f"no fault {kind!r}; there are {', '.join(FAULTS)}")
    values = dict(word.split("=", 1) if "=" in word else (word, "") for word in rest)
    unknown = set(values) - {"size", "rank", "phase", "onset", "every", "share"}
    if unknown:
        raise ValueError(f"{min(unknown)!r} is nothing that a fault has: size, rank, phase, onset, every, share")
    when = When(int(values.get("onset", 0)), float(values.get("every", 1)), float(values.get("share", 1)))
    return Fault(kind, float(values.get("size", size)), int(values.get("rank", -1)), values.get("phase"), when)


def main(arguments: Sequence[str] | None = None) -> int:
    flags = parser().parse_args(arguments)
    seeds = range(flags.seed, flags.seed + (flags.seeds or 1))
    try:
        faults = tuple(parse_fault(text, flags.size) for text in flags.fault)
        lasting = parse_lasting(flags.lasting) if flags.lasting else None
        for seed in seeds:
            case = Case(
                flags.layout,
                flags.form,
                seed,
                flags.steps,
                faults,
                tuple(flags.innocent),
                flags.clock_offset,
                flags.clock_drift * 1e-6,
                lasting,
            )
            directory = flags.out / str(seed) if flags.seeds else flags.out
            write(simulate(case), directory)
            print(directory)
    except Unlocatable as reason:
        print(f"simulate: no such case: {reason}", file=sys.stderr)
        return 2
    except ValueError as reason:
        print(f"simulate: {reason}", file=sys.stderr)
        return 64
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
