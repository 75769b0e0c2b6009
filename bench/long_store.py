"""What a week of a job's phases takes in a long-term store: 1,024 ranks, as rules.yml records them.

    long_store.py [--ranks 1024] [--days 7] [--by-rules 32]

First the rules themselves, on fewer ranks: a real Prometheus is filled with their counters, promtool evaluates the
group laggard-weeks over all of the time, and what that makes is compared with what this program makes itself for all
ranks. Both are put into a Prometheus, which packs its blocks together as ever; where there is a `victoria-metrics`,
also into that. Steps of 0.2 s and of 8 s: the longer a step, the more digits its phases have.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import yaml
from common.figures import Figure, show, single
from common.refused import need
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from support.prometheus_series import RANKS_OF_NODE, prometheus, victoria_metrics

RULES = Path(__file__).parents[1] / "deploy" / "prometheus" / "rules.yml"
GROUP = "laggard-weeks"
PHASES = {"input": 0.01, "forward": 0.05, "backward": 0.08, "optimizer": 0.02, "between_steps": 0.002, "other": 0.005}
STEP = 0.2
NAME = "rank_phase:laggard_rank_phase_seconds:mean5m"
RESOLUTION = 2.0**-14
INTERVAL, SCRAPE, BLOCK = 300, 60, 7200
QUIET_SECONDS = 15.0
"""The time without another compaction after which the packing is over."""

BUDGET_MB = 100.0
STEPS = {"0.2 s": 1.0, "8 s": 40.0}
DIFFERENCES = 0.01
"""The share by which a rank's phases differ from those of its peers, and slowly, over hours, from its own; beside it
each minute's mean differs by DIFFERENCES / 3. Healthy ranks' own, as in docs/measurements.md."""

Values = NDArray[np.float64]


def means(ranks: int, minutes: int, longer: float, seed: int = 0) -> Values:
    """[minute, rank, phase]: the mean seconds a step."""
    generator = np.random.default_rng(seed)
    base = longer * np.array(list(PHASES.values()))
    shape = (ranks, len(PHASES))
    of_rank, begins = generator.standard_normal(shape), 2 * np.pi * generator.random(shape)
    slowly = np.sin(2 * np.pi * np.arange(minutes)[:, None, None] / 480 + begins)
    noise = generator.standard_normal((minutes, *shape), np.float32)
    return base * (1 + DIFFERENCES * (of_rank + slowly) + DIFFERENCES / 3 * noise)


def labels(rank: int, phase: str) -> str:
    of_phase = f',phase="{phase}"' if phase else ""
    return (
        f'{{job_id="train-7",user="1000",rank="{rank}"{of_phase},instance="n{rank // RANKS_OF_NODE}:19400"'
        ',job="laggard-agent"}'
    )


def blocks(folder: Path, data: Path, columns: list[tuple[str, Values]], begin: int, every: int, kind: str) -> None:
    """Makes blocks of two hours of `columns`, each with its name and labels, and a value `every` so many seconds from
    `begin` on. One call of promtool for each: it reads its whole input once a block."""
    count = len(columns[0][1])
    for first in range(0, count, BLOCK // every):
        text = folder / "part.txt"
        with text.open("w") as file:
            file.write(f"# TYPE {columns[0][0].partition('{')[0].removesuffix('_total')} {kind}\n")
            for name, values in columns:
                part = values[first : first + BLOCK // every].tolist()
                file.write("".join(f"{name} {v!r} {begin + (first + n) * every}\n" for n, v in enumerate(part)))
            file.write("# EOF\n")
        command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(text), str(data)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "TMPDIR": str(folder)})


def recorded(ranks: int, minutes: int, longer: float) -> list[tuple[str, Values]]:
    """What the rule records, from the mean of the five minutes before each moment."""
    found = means(ranks, minutes, longer).reshape(-1, INTERVAL // SCRAPE, ranks, len(PHASES)).mean(axis=1)
    found = np.floor(found / RESOLUTION + 0.5) * RESOLUTION
    return [
        (f"{NAME}{labels(rank, phase)}", found[:, rank, place])
        for rank in range(ranks)
        for place, phase in enumerate(PHASES)
    ]


def by_the_rules(ranks: int, minutes: int, longer: float, begin: int, folder: Path) -> Path:
    """The blocks that promtool makes with rules.yml of a real Prometheus' counters."""
    raw, made = folder / "raw", folder / "by-rules"
    found = means(ranks, minutes, longer)
    steps = np.full(minutes, SCRAPE / (STEP * longer))
    counted = [(f"laggard_rank_steps_total{labels(rank, '')}", np.cumsum(steps)) for rank in range(ranks)]
    phases = np.cumsum(found * steps[:, None, None], axis=0)
    blocks(folder, raw, counted, begin, SCRAPE, "counter")
    timed = [
        (f"laggard_rank_phase_seconds_total{labels(rank, phase)}", phases[:, rank, place])
        for rank in range(ranks)
        for place, phase in enumerate(PHASES)
    ]
    blocks(folder, raw, timed, begin, SCRAPE, "counter")
    groups = [group for group in yaml.safe_load(RULES.read_text())["groups"] if group["name"] == GROUP]
    (folder / "rules.yml").write_text(yaml.safe_dump({"groups": groups}))
    end = begin + minutes * SCRAPE
    with prometheus(raw) as (url, _):
        command = ["promtool", "tsdb", "create-blocks-from", "rules", f"--url={url}", f"--start={begin}"]
        command += [f"--end={end}", f"--output-dir={made}", str(folder / "rules.yml")]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(raw)
    return made


def packed(data: Path) -> tuple[float, int, int]:
    """Bytes, samples and series when Prometheus has packed the blocks together as far as it does. It looks once a
    minute, and then packs until nothing is left to be."""
    with prometheus(data) as (url, _):
        deadline, last, since = time.monotonic() + 600, (0.0, 0.0), time.monotonic()
        while not (last[0] and time.monotonic() - since > QUIET_SECONDS):
            if time.monotonic() > deadline:
                raise SystemExit("Prometheus does not pack its blocks together")
            time.sleep(1)
            now = _counter(url, "triggered_total"), _counter(url, "total")
            if now != last or _counter(url, "populating_block", "compaction"):
                last, since = now, time.monotonic()
    found = [block for block in data.iterdir() if (block / "meta.json").exists()]
    told = [json.loads((block / "meta.json").read_text())["stats"] for block in found]
    size = sum(file.stat().st_size for block in found for file in _files(block))
    return float(size), sum(it["numSamples"] for it in told), max(it["numSeries"] for it in told)


def _counter(url: str, name: str, of: str = "compactions") -> float:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return next((float(line.split()[1]) for line in lines if line.startswith(f"prometheus_tsdb_{of}_{name} ")), 0.0)


def _files(block: Path) -> Iterator[Path]:
    return (path for path in block.rglob("*") if path.is_file())


def _differ(made: Path, begin: int, minutes: int, mine: list[tuple[str, Values]]) -> float:
    """The largest difference between the rules' values and this program's at noon of each day, in percent. There has to
    be one: of counters that are read each minute, rate() over five minutes sees four."""
    worst, expected = 0.0, dict(mine)
    with prometheus(made) as (url, _):
        for moment in range(begin + 43200, begin + minutes * SCRAPE, 86400):
            query = urllib.parse.urlencode({"query": NAME, "time": moment})
            with urllib.request.urlopen(f"{url}/api/v1/query?{query}", timeout=60) as answer:
                found = json.load(answer)["data"]["result"]
            assert len(found) == len(expected), f"{len(found)} series of {len(expected)}"
            for each in found:
                name = f"{NAME}{labels(int(each['metric']['rank']), each['metric']['phase'])}"
                of_mine = expected[name][(moment - begin) // INTERVAL - 1]
                worst = max(worst, abs(float(each["value"][1]) / of_mine - 1))
    return 100 * worst


def in_victoria_metrics(columns: list[tuple[str, Values]], begin: int, folder: Path) -> float:
    """Bytes on disk after it has merged all parts, and has ended, so that nothing is in its memory alone."""
    with victoria_metrics(folder / "vm") as (url, _):
        for first in range(0, len(columns), 512):
            lines = (
                f"{name} {v!r} {(begin + n * INTERVAL) * 1000}\n"
                for name, values in columns[first : first + 512]
                for n, v in enumerate(values.tolist())
            )
            urllib.request.urlopen(f"{url}/api/v1/import/prometheus", "".join(lines).encode(), 120).close()
        for path in ("/internal/force_flush", "/internal/force_merge"):
            urllib.request.urlopen(f"{url}{path}", timeout=600).close()
        query = urllib.parse.urlencode({"query": f"sum(count_over_time({{__name__='{NAME}'}}[60d]))", "nocache": 1})
        with urllib.request.urlopen(f"{url}/api/v1/query?{query}", timeout=300) as answer:
            held = int(json.load(answer)["data"]["result"][0]["value"][1])
        assert held == sum(len(values) for _, values in columns), f"VictoriaMetrics has {held} samples"
    return float(sum(path.stat().st_size for path in (folder / "vm").rglob("*") if path.is_file()))


def measure(ranks: int, days: int, by_rules: int, steps: Sequence[str]) -> Iterator[Figure]:
    minutes = days * 1440
    begin = (round(time.time()) - minutes * SCRAPE) // BLOCK * BLOCK - 2 * BLOCK
    for name in steps:
        longer = STEPS[name]
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            if by_rules:
                made = by_the_rules(by_rules, minutes, longer, begin, folder)
                worst = _differ(made, begin, minutes, recorded(by_rules, minutes, longer))
                size, samples, _ = packed(made)
                yield single(f"{name}, {by_rules} ranks by the rules: bytes a sample", size / samples, "B")
                yield single(
                    f"{name}, {by_rules} ranks by the rules: differ from this program's by at most", worst, "%"
                )
            columns = recorded(ranks, minutes, longer)
            blocks(folder, folder / "data", columns, begin, INTERVAL, "gauge")
            apart = sum(file.stat().st_size for file in _files(folder / "data")) / 1e6
            size, samples, series = packed(folder / "data")
            of = f"{name}, {ranks} ranks"
            yield single(
                f"{of}: Prometheus, {series} series, {samples / 1e6:.1f} M samples", size / 1e6, "MB", BUDGET_MB
            )
            yield single(f"{of}: bytes a sample", size / samples, "B")
            yield single(f"{of}: blocks of two hours, not yet packed together", apart, "MB")
            if shutil.which("victoria-metrics"):
                size = in_victoria_metrics(columns, begin, folder)
                yield single(f"{of}: VictoriaMetrics", size / 1e6, "MB", BUDGET_MB)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--days", type=int, default=7)
    parser.add_argument("--by-rules", type=int, default=32)
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS), help="of so many seconds")
    options = parser.parse_args()
    need("prometheus", "promtool")
    title = f"{options.days} days of the phases of {options.ranks} ranks in a long-term store"
    figures = []
    for figure in measure(options.ranks, options.days, options.by_rules, options.steps):
        print(f"{figure.name}: {figure.value:.4g} {figure.unit}", file=sys.stderr, flush=True)
        figures.append(figure)
    return 0 if show(title, figures) else 1


if __name__ == "__main__":
    raise SystemExit(main())
