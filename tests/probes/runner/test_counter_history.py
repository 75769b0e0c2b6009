"""Counters are judged by how they grew since an earlier look, of this boot, kept between processes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.environment import state_dir
from laggard.model import Finding, Report, Verdict
from laggard.probes.errors import Unknown
from laggard.probes.host.counter_history import (
    FIRST_LOOK,
    LEAST_SECONDS,
    MOST_SECONDS,
    Growth,
    Look,
    Past,
    Remember,
    add,
)
from laggard.probes.host.host import Host
from laggard.probes.probe import Fact, Probe, Thresholds
from laggard.probes.runner.runner import run

BOOT = "0b7d8c5e-1111-4222-8333-944455566677"


def past(*looks: tuple[float, int], now: float = 10000.0) -> Past:
    return Past(now, tuple(Look(uptime, {"errors": value}) for uptime, value in looks))


def test_the_first_look_tells_no_growth() -> None:
    assert Past().growth("errors", 255) is None
    assert Past().says == FIRST_LOOK


def test_growth_is_since_the_newest_look() -> None:
    assert past((1000.0, 3), (9000.0, 7)).growth("errors", 10) == Growth(3, 1000.0)


def test_growth_over_an_hour_uses_a_look_that_is_as_old() -> None:
    looks = past((1000.0, 3), (6000.0, 4), (9000.0, 7))
    assert looks.growth("errors", 10, seconds=3600) == Growth(6, 4000.0)
    assert looks.growth("errors", 10, seconds=86400) == Growth(7, 9000.0)


def test_two_looks_in_a_moment_are_one() -> None:
    assert past((9999.0, 1)).growth("errors", 100) is None
    assert past((9000.0, 0), (9999.0, 1)).growth("errors", 100) == Growth(100, 1000.0)


def test_a_counter_that_went_backwards_starts_anew() -> None:
    assert past((9000.0, 100)).growth("errors", 3) is None
    assert past((1000.0, 100), (9000.0, 1)).growth("errors", 3, seconds=9000) == Growth(2, 1000.0)


def test_a_new_counter_tells_no_growth() -> None:
    assert past((9000.0, 100)).growth("other", 3) is None


def test_nothing_is_extrapolated() -> None:
    assert Growth(2, 60.0).per(3600) == 2
    assert Growth(240, 7200.0).per(3600) == 120


@given(
    st.lists(st.floats(1, 1e6), max_size=30).map(sorted),
    st.lists(st.integers(0, 100), max_size=30),
    st.floats(0, 1e6),
)
def test_growth_is_never_negative_nor_from_the_future(uptimes: list[float], values: list[int], seconds: float) -> None:
    now = (uptimes[-1] if uptimes else 0.0) + 1.0
    growth = past(*zip(uptimes, values, strict=False), now=now).growth("errors", 50, seconds)
    assert growth is None or (growth.count >= 0 and LEAST_SECONDS <= growth.seconds <= now)


@given(st.floats(1, 7200), st.integers(2, 400))
def test_however_often_it_looks_an_hour_can_be_told_and_little_is_kept(period: float, count: int) -> None:
    looks: tuple[Look, ...] = ()
    for number in range(1, count):
        looks = add(looks, Look(number * period, {}))
    now = count * period
    ages = [now - look.uptime for look in looks]
    assert ages == sorted(ages, reverse=True) and len(looks) <= 2 * 12 + 4
    oldest = max(ages)
    assert oldest <= max(MOST_SECONDS, 2 * period) + 2 * period
    if now - period >= 3600:
        hour = min(age for age in ages if age >= 3600 or age == oldest)
        assert hour <= 2 * 3600 + 2 * max(period, LEAST_SECONDS)


# Between processes


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "deep" / "state"
    monkeypatch.setenv("LAGGARD_STATE_DIR", str(path))
    return path


Items = Iterator[Finding | Fact | Remember]


def probe(value: int, name: str = "counting") -> Probe:
    def look(host: Host, thresholds: Thresholds) -> Items:
        growth = host.past.growth("errors", value)
        yield Fact("growth", None if growth is None else growth.count)
        yield Remember({"errors": value})

    return Probe(name, look, Thresholds())


def look_once(value: int, name: str = "counting") -> Report:
    return run(Host(), [probe(value, name)], deadline_seconds=60)


def age(state: Path, seconds: float) -> None:
    """As if the looks had been made `seconds` earlier; the test machine may not have been up for that long."""
    document = json.loads((state / "last_look.json").read_text())
    for looks in document["probes"].values():
        for look in looks:
            look["uptime"] -= seconds
    (state / "last_look.json").write_text(json.dumps(document))


def test_growth_is_known_from_the_second_process_on(state: Path) -> None:
    first = look_once(255)
    assert first.facts["counting"] == {"growth": None, "last_look": FIRST_LOOK} and first.verdict is Verdict.OK
    age(state, 100)
    second = look_once(258)
    assert second.facts["counting"]["growth"] == 3
    assert second.facts["counting"]["last_look"] == "compared with looks 100 to 100 s ago"


def test_the_directory_is_the_users_alone(state: Path) -> None:
    look_once(1)
    assert state.stat().st_mode & 0o777 == 0o700
    assert os.listdir(state) == ["last_look.json"]


def test_probes_keep_apart_and_one_alone_loses_nothing_of_the_others(state: Path) -> None:
    look_once(1, "one")
    look_once(2, "two")
    age(state, 100)
    assert look_once(5, "two").facts["two"]["growth"] == 3
    assert look_once(2, "one").facts["one"]["growth"] == 1


def test_what_was_seen_before_a_probe_gave_up_is_kept(state: Path) -> None:
    def look(host: Host, thresholds: Thresholds) -> Items:
        yield Remember({"errors": 1})
        raise Unknown("the rest is unreadable")

    run(Host(), [Probe("counting", look, Thresholds())], deadline_seconds=60)
    age(state, 100)
    assert look_once(2).facts["counting"]["growth"] == 1


def test_another_boot_is_a_first_look(state: Path) -> None:
    look_once(1)
    age(state, 100)
    document = json.loads((state / "last_look.json").read_text())
    (state / "last_look.json").write_text(json.dumps({**document, "boot_id": BOOT}))
    report = look_once(2)
    assert report.facts["counting"]["growth"] is None
    assert "started anew" in report.facts["counting"]["last_look"]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\0\xff", b"[]", b'{"boot_id": 1}', b'{"boot_id":"x","probes":{"counting":[{}]}}', b"1" * 99],
)
def test_a_damaged_file_is_no_last_look_and_is_replaced(state: Path, content: bytes) -> None:
    look_once(1)
    (state / "last_look.json").write_bytes(content)
    report = look_once(2)
    assert report.verdict is Verdict.OK and report.facts["counting"]["growth"] is None
    age(state, 100)
    assert look_once(3).facts["counting"]["growth"] == 1


def test_a_file_that_is_not_a_file_is_not_followed(state: Path, tmp_path: Path) -> None:
    state.mkdir(parents=True, mode=0o700)
    other = tmp_path / "precious"
    other.write_text("precious")
    (state / "last_look.json").symlink_to(other)
    assert look_once(1).verdict is Verdict.OK
    assert other.read_text() == "precious" and not (state / "last_look.json").is_symlink()


def test_a_fifo_does_not_hold_it_up(state: Path) -> None:
    state.mkdir(parents=True, mode=0o700)
    os.mkfifo(state / "last_look.json")
    assert look_once(1).verdict is Verdict.OK


def refused_link(state: Path) -> None:
    state.parent.mkdir(parents=True)
    (state.parent / "other").mkdir(mode=0o700)
    state.symlink_to("other")


def refused_open_to_others(state: Path) -> None:
    state.mkdir(parents=True)
    state.chmod(0o777)


def refused_file(state: Path) -> None:
    state.parent.mkdir(parents=True)
    state.write_text("a file")


def refused_parent(state: Path) -> None:
    state.parent.write_text("a file")


REFUSED = [refused_link, refused_open_to_others, refused_file, refused_parent]


@pytest.mark.parametrize("spoil", REFUSED, ids=lambda spoil: spoil.__name__)
def test_a_directory_that_is_not_to_be_trusted_is_left_alone_and_said_once(state: Path, spoil: object) -> None:
    assert callable(spoil)
    spoil(state)
    report = run(Host(), [probe(1), probe(2, "other")], deadline_seconds=60)
    assert report.verdict is Verdict.OK
    assert (
        str(state) in report.facts["runner"]["last_look"] and "cannot be known" in report.facts["runner"]["last_look"]
    )
    assert "last_look" not in report.facts["counting"]
    assert not [name for _, _, names in os.walk(state.parent) for name in names if name.startswith(("last", ".last"))]


def test_somebody_elses_directory_is_refused(state: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to give a directory away")
    state.mkdir(parents=True, mode=0o700)
    os.chown(state, 65534, 65534)
    assert "not this user's alone" in look_once(1).facts["runner"]["last_look"]
    assert os.listdir(state) == []


def test_nothing_is_made_where_nothing_is_remembered(state: Path) -> None:
    run(Host(), [Probe("idle", lambda host, thresholds: iter(()), Thresholds())], deadline_seconds=60)
    assert not state.exists()


def test_a_recorded_machine_holds_its_own_and_is_not_written(state: Path, tmp_path: Path) -> None:
    machine = tmp_path / "machine"
    for path, text in {
        "proc/sys/kernel/random/boot_id": f"{BOOT}\n",
        "proc/uptime": "10000.00 1.0\n",
        "laggard/last_look.json": json.dumps(
            {"boot_id": BOOT, "probes": {"counting": [{"uptime": 9000.0, "counters": {"errors": 1}}]}}
        ),
    }.items():
        (machine / path).parent.mkdir(parents=True, exist_ok=True)
        (machine / path).write_text(text)
    before = (machine / "laggard/last_look.json").read_bytes()
    report = run(Host(str(machine)), [probe(8)], deadline_seconds=60)
    assert report.facts["counting"] == {"growth": 7, "last_look": "compared with looks 1000 to 1000 s ago"}
    assert (machine / "laggard/last_look.json").read_bytes() == before and not state.exists()


@pytest.mark.parametrize("missing", ["proc/sys/kernel/random/boot_id", "proc/uptime"])
def test_without_boot_id_or_uptime_growth_is_not_known_and_the_report_says_why(tmp_path: Path, missing: str) -> None:
    for path, text in {"proc/sys/kernel/random/boot_id": BOOT, "proc/uptime": "100.0 1.0"}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("" if path == missing else text)
    (tmp_path / missing).unlink()
    report = run(Host(str(tmp_path)), [probe(8)], deadline_seconds=60)
    assert report.verdict is Verdict.OK and missing in report.facts["counting"]["last_look"]


def test_where_it_is_kept() -> None:
    assert state_dir({"LAGGARD_STATE_DIR": "/x", "XDG_RUNTIME_DIR": "/y"}) == "/x"
    if os.geteuid() == 0:
        assert state_dir({"XDG_RUNTIME_DIR": "/y"}) == "/run/laggard/state"
    else:
        assert state_dir({"XDG_RUNTIME_DIR": "/y"}) == "/y/laggard"
        assert state_dir({}) == f"/tmp/laggard-{os.geteuid()}"
