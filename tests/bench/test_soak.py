"""What bench/soak.py calls a leak, of samples whose answer is known."""

from __future__ import annotations

from soaking.daemons import Sample
from soaking.leaks import LEAST_SAMPLES, leaks

MIB = 1 << 20


def life(memory: list[int], descriptors: int = 14, grows: float = 0.0, number: int = 1) -> list[Sample]:
    return [Sample(2.0 * n, number, it * MIB, int(descriptors + grows * n), 6) for n, it in enumerate(memory)]


def test_a_daemon_whose_memory_is_flat_after_its_start_does_not_leak() -> None:
    assert leaks("agent", life([10, 20, 30] + [40] * 57)) == []
    assert leaks("agent", life([40, 60] * 30)) == [], "what comes and goes is no leak"


def test_memory_that_grows_all_the_time_is_a_leak() -> None:
    assert leaks("agent", life(list(range(40, 100)))) == ["agent grew from 72.9 to 93.8 MB"]


def test_descriptors_that_stay_open_are_a_leak() -> None:
    assert leaks("agent", life([40] * 60, grows=0.5)) == ["agent had 28 open descriptors, then 38"]


def test_a_life_that_is_too_short_is_not_called_flat() -> None:
    (said,) = leaks("agent", life([40] * (LEAST_SAMPLES - 1)))
    assert "too few to tell" in said


def test_each_life_begins_anew() -> None:
    """A daemon that was killed begins small again: that is judged within its longest life."""
    samples = life([20] * 10, number=1) + life([60] * 40, number=2)
    assert leaks("agent", samples) == []
