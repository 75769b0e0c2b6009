"""Noise that lasts: each simulator draws what it is asked for and nothing else otherwise, the bench that measures noise
finds it again, and the bench of false alarms counts what the collector's parts say."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import false_alarms
import fluid
import fluid_simulator.cases
import laggard_bench.cases
import numpy as np
import pytest
import simulate as simulate_command
from common.live_job import VICTIM, Job, Noise, Round, Series, rounds_of, steps_of
from fluid_simulator.lasting import Drift
from laggard_bench import make
from laggard_bench.lasting import Walk, read
from numpy.typing import NDArray
from simulator.case import Case
from simulator.noise import parse_lasting, wandering
from simulator.recording import write

from laggard.locate.job_timings import END, START, WAITED
from laggard.model import Culprit, Location, Verdict, Window

Floats = NDArray[np.float64]


def walked(rho: float, sd: float, steps: int, count: int) -> Floats:
    walk = Walk(np.random.default_rng(3), rho, sd, count)
    found = [walk.now]
    for _ in range(steps - 1):
        walk.go_on()
        found.append(walk.now)
    return np.array(found)


def drifted(rho: float, sd: float, steps: int, count: int) -> Floats:
    drift = Drift([3], rho, sd, count)
    return np.array([[drift.at(step, place) for place in range(count)] for step in range(steps)])


def followed(rho: float, sd: float, steps: int, count: int) -> Floats:
    series = Series(np.random.default_rng(3), rho, sd, count)
    return np.array([series.next() for _ in range(steps)])


def of_the_tests(rho: float, sd: float, steps: int, count: int) -> Floats:
    return wandering(np.random.default_rng(3), rho, sd, steps, count)


@pytest.mark.parametrize("drawn", [of_the_tests, walked, drifted, followed])
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9, 0.98])
def test_what_is_drawn_has_the_deviation_and_the_correlation_that_were_asked_for(
    drawn: Callable[[float, float, int, int], Floats], rho: float
) -> None:
    """Within five standard errors of an autoregression's (Bartlett), from the first step on as in the last."""
    sd, steps, count = 0.05, 2000, 20
    noise = drawn(rho, sd, steps, count)
    independent = steps * count * (1 - rho**2) / (1 + rho**2)
    assert noise.var() == pytest.approx(sd * sd, rel=5 * (2 / independent) ** 0.5)
    for lag in (1, 10):
        found = (noise[lag:] * noise[:-lag]).mean() / noise.var()
        assert found == pytest.approx(rho**lag, abs=5 * ((1 + rho**2) / (1 - rho**2) / steps / count) ** 0.5)
    first = noise[0] / sd  # it does not begin at 0: 20 values of a normal distribution have this sum of squares
    assert 5 < (first**2).sum() < 48  # chi-squared, 1 in 2,500 either way
    assert abs(np.corrcoef(noise[:, 0], noise[:, 1])[0, 1]) < 5 / (independent / count) ** 0.5


def digest(folder: Path) -> str:
    found = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            found.update(str(file.relative_to(folder)).encode() + file.read_bytes())
    return found.hexdigest()[:16]


def test_cases_without_lasting_noise_are_those_that_they_were(tmp_path: Path) -> None:
    """Each case is of one seed as it was before there was lasting noise, to the byte."""
    write(simulate_command.simulate(Case("dp8", seed=7, steps=20)), tmp_path / "tests")
    assert digest(tmp_path / "tests") == "a3d5f989b83c4afb"
    truth = laggard_bench.cases.make_case(5, "0001-balanced", tmp_path / "bench")
    (tmp_path / "bench" / "truth.json").write_text(json.dumps(truth))
    assert digest(tmp_path / "bench") == "0552bc1e46f556ce"
    fluid_simulator.cases.make_case(11, 33, tmp_path / "fluid", "plain")
    assert digest(tmp_path / "fluid") == "2fa7edc355e37894"


@pytest.mark.parametrize("parse", [parse_lasting, read])
def test_what_lasts_is_read_from_a_flag(parse: Callable[[str], Any]) -> None:
    found = parse("rho=0.95,sd=0.02")
    assert (found.rho, found.sd, found.lengths, found.data) == (0.95, 0.02, 0.0, 0.0)
    for wrong in ("rho=1", "sd=-0.1", "rho", "size=1", "sd=much", "sd=inf"):
        with pytest.raises(ValueError):
            parse(wrong)


def test_a_flag_that_cannot_be_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    assert simulate_command.main([out, "--lasting", "rho=2"]) == 64
    assert fluid.main(["--seed", "1", "--case", "0", "--out", out, "--lasting", "rho=2"]) == 64
    assert make.main(["--seed", "1", "--case", "0000-gpu", "--out", out, "--lasting", "rho=2"]) == 64
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3 and all("rho" in line for line in lines) and not (tmp_path / "out").exists()


def test_a_live_jobs_ranks_wait_for_the_slowest_and_one_becomes_slower() -> None:
    job = Job(4, 1.0, Noise(0.9, 0.02), 2.0, slower=0.2, onset_minutes=1.0)
    steps = steps_of(job, np.random.default_rng(1))
    table = np.stack([next(steps) for _ in range(100)])
    seconds = table[:, :, END] - table[:, :, START]
    own = seconds - table[:, :, WAITED]
    assert np.allclose(own, table[:, :, -9:].sum(axis=2)) and (table[:, :, WAITED] > 0).all()
    assert np.allclose(table[1:, :, START], table[:-1, :, END])
    later = table[:, 0, START] >= 60
    others = np.delete(own, VICTIM, axis=1).mean(axis=1)
    assert np.median(own[later, VICTIM] / others[later]) == pytest.approx(1.2, abs=0.06)
    assert np.median(own[~later, VICTIM] / others[~later]) == pytest.approx(1.0, abs=0.06)


def test_a_collector_names_a_slow_rank_of_a_quiet_job_and_nobody_of_a_healthy_one() -> None:
    quiet = Job(4, 1.0, Noise(0.5, 0.005), 2.0)
    healthy = list(rounds_of(quiet, np.random.default_rng(1)))
    assert len(healthy) == 24 and not any(each.told.culprits or each.opened for each in healthy)
    assert healthy[-1].told.verdict.value == "ok"
    found = list(rounds_of(quiet._replace(slower=0.2, onset_minutes=1.0), np.random.default_rng(1)))
    named = [each.now for each in found if each.drawn and false_alarms.ranks_named(each.drawn) == {VICTIM}]
    assert 60 < named[0] <= 90 and sum(each.opened for each in found) == 1


def told(*ranks: int) -> Location:
    """A verdict that names these ranks."""
    named = tuple(Culprit("slow_compute", (rank,)) for rank in ranks)
    return Location(Verdict.FAIL if named else Verdict.OK, "job", 4, 4, Window(), None, named, ())


def test_verdicts_and_incidents_are_counted_from_the_moment_on_at_which_a_rank_is_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rounds stand in for a collector's."""
    rounds = [
        Round(55.0, told(VICTIM), told(VICTIM), 0),
        Round(60.0, told(), told(VICTIM), 1),
        Round(65.0, told(VICTIM, 2), told(VICTIM, 2), 0),
        Round(70.0, None, told(VICTIM, 2), 0),
        Round(75.0, told(VICTIM), told(VICTIM), 1),
        Round(80.0, told(VICTIM), told(), 0),
    ]
    monkeypatch.setattr(false_alarms, "rounds_of", lambda job, rng: iter(rounds))
    job, rng = Job(4, 1.0, Noise(), 2.0, 0.05, onset_minutes=1.0), np.random.default_rng(0)
    assert false_alarms.healthy(job, rng) == {"rounds": 6, "drawn": 5, "false": 4, "told": 5, "incidents": 2}
    assert false_alarms.with_a_slow_rank(job, rng) == {"drawn": 4, "alone": 2, "innocent": 1, "seconds": 15.0}
    unit = false_alarms.Unit("0.05", 0, Noise(0.9, 0.02), 8, 1.0, 25.0)
    found = {unit: {"drawn": 4, "alone": 2, "innocent": 1, "seconds": 15.0}}
    assert "| rho 0.9, 2 % | 1 of 1 (21 to 100 %) | 15 s | 50 / 25 % | - | - | - |" in false_alarms.slow_table(found)
