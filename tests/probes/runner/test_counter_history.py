"""Counters are judged by their increase since an earlier run in this boot; snapshots outlive processes."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.kit.environment import state_dir
from laggard.model import Finding, Report, Verdict
from laggard.probes.errors import Unknown
from laggard.probes.host.counter_history import (
    MAX_AGE_SECONDS,
    MIN_INTERVAL_SECONDS,
    NO_SNAPSHOT,
    CounterHistory,
    CounterSnapshot,
    Increase,
    SaveCounters,
    add_snapshot,
)
from laggard.probes.host.host import Host
from laggard.probes.probe import Fact, Probe, Thresholds
from laggard.probes.runner.runner import run

pytestmark = pytest.mark.usefixtures("without_processes")

BOOT = "0b7d8c5e-1111-4222-8333-944455566677"


def history(*snapshots: tuple[float, int], now: float = 10000.0) -> CounterHistory:
    return CounterHistory(now, tuple(CounterSnapshot(uptime, {"errors": value}) for uptime, value in snapshots))


def test_without_an_earlier_snapshot_the_increase_is_unknown() -> None:
    assert CounterHistory().increase("errors", 255) is None
    assert CounterHistory().description == NO_SNAPSHOT


def test_the_increase_is_since_the_newest_snapshot() -> None:
    assert history((1000.0, 3), (9000.0, 7)).increase("errors", 10) == Increase(3, 1000.0)


def test_the_increase_over_an_hour_is_since_a_snapshot_of_that_age() -> None:
    several = history((1000.0, 3), (6000.0, 4), (9000.0, 7))
    assert several.increase("errors", 10, seconds=3600) == Increase(6, 4000.0)
    assert several.increase("errors", 10, seconds=86400) == Increase(7, 9000.0)


def test_two_snapshots_in_a_moment_count_as_one() -> None:
    assert history((9999.0, 1)).increase("errors", 100) is None
    assert history((9000.0, 0), (9999.0, 1)).increase("errors", 100) == Increase(100, 1000.0)


def test_a_counter_that_decreased_starts_again() -> None:
    assert history((9000.0, 100)).increase("errors", 3) is None
    assert history((1000.0, 100), (9000.0, 1)).increase("errors", 3, seconds=9000) == Increase(2, 1000.0)


def test_the_increase_of_a_new_counter_is_unknown() -> None:
    assert history((9000.0, 100)).increase("other", 3) is None


def test_nothing_is_extrapolated() -> None:
    assert Increase(2, 60.0).per(3600) == 2
    assert Increase(240, 7200.0).per(3600) == 120


@given(
    st.lists(st.floats(1, 1e6), max_size=30).map(sorted),
    st.lists(st.integers(0, 100), max_size=30),
    st.floats(0, 1e6),
)
def test_an_increase_is_never_negative_nor_from_the_future(
    uptimes: list[float], values: list[int], seconds: float
) -> None:
    now = (uptimes[-1] if uptimes else 0.0) + 1.0
    increase = history(*zip(uptimes, values, strict=False), now=now).increase("errors", 50, seconds)
    assert increase is None or (increase.count >= 0 and MIN_INTERVAL_SECONDS <= increase.seconds <= now)


@given(st.floats(1, 7200), st.integers(2, 400))
def test_however_often_probes_run_an_hour_is_covered_and_little_is_kept(period: float, count: int) -> None:
    snapshots: tuple[CounterSnapshot, ...] = ()
    for number in range(1, count):
        snapshots = add_snapshot(snapshots, CounterSnapshot(number * period, {}))
    now = count * period
    ages = [now - snapshot.uptime for snapshot in snapshots]
    assert ages == sorted(ages, reverse=True) and len(snapshots) <= 2 * 12 + 4
    oldest = max(ages)
    assert oldest <= max(MAX_AGE_SECONDS, 2 * period) + 2 * period
    if now - period >= 3600:
        hour = min(age for age in ages if age >= 3600 or age == oldest)
        assert hour <= 2 * 3600 + 2 * max(period, MIN_INTERVAL_SECONDS)


# Between processes


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "deep" / "state"
    monkeypatch.setenv("LAGGARD_STATE_DIR", str(path))
    return path


Items = Iterator[Finding | Fact | SaveCounters]


def probe(value: int, name: str = "counting") -> Probe:
    def check(host: Host, thresholds: Thresholds) -> Items:
        increase = host.counter_history.increase("errors", value)
        yield Fact("increase", None if increase is None else increase.count)
        yield SaveCounters({"errors": value})

    return Probe(name, check, Thresholds())


def run_once(value: int, name: str = "counting") -> Report:
    return run(Host(), [probe(value, name)], deadline_seconds=60)


def age(state: Path, seconds: float) -> None:
    """Makes the saved snapshots `seconds` older; the test machine may not have been up for that long."""
    document = json.loads((state / "last_look.json").read_text())
    for snapshots in document["probes"].values():
        for snapshot in snapshots:
            snapshot["uptime"] -= seconds
    (state / "last_look.json").write_text(json.dumps(document))


def test_the_increase_is_known_from_the_second_process_on(state: Path) -> None:
    first = run_once(255)
    assert first.facts["counting"] == {"increase": None, "last_look": NO_SNAPSHOT} and first.verdict is Verdict.OK
    age(state, 100)
    second = run_once(258)
    assert second.facts["counting"]["increase"] == 3
    assert second.facts["counting"]["last_look"] == "compared with snapshots 100 to 100 s old"


def test_the_directory_is_the_users_alone(state: Path) -> None:
    run_once(1)
    assert state.stat().st_mode & 0o777 == 0o700
    assert os.listdir(state) == ["last_look.json"]


def test_one_probe_run_alone_keeps_the_snapshots_of_the_others(state: Path) -> None:
    run_once(1, "one")
    run_once(2, "two")
    age(state, 100)
    assert run_once(5, "two").facts["two"]["increase"] == 3
    assert run_once(2, "one").facts["one"]["increase"] == 1


def test_counters_of_a_probe_that_gave_up_are_saved(state: Path) -> None:
    def check(host: Host, thresholds: Thresholds) -> Items:
        yield SaveCounters({"errors": 1})
        raise Unknown("the rest is unreadable")

    run(Host(), [Probe("counting", check, Thresholds())], deadline_seconds=60)
    age(state, 100)
    assert run_once(2).facts["counting"]["increase"] == 1


def test_after_a_reboot_there_is_no_earlier_snapshot(state: Path) -> None:
    run_once(1)
    age(state, 100)
    document = json.loads((state / "last_look.json").read_text())
    (state / "last_look.json").write_text(json.dumps({**document, "boot_id": BOOT}))
    report = run_once(2)
    assert report.facts["counting"]["increase"] is None
    assert "rebooted" in report.facts["counting"]["last_look"]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\0\xff", b"[]", b'{"boot_id": 1}', b'{"boot_id":"x","probes":{"counting":[{}]}}', b"1" * 99],
)
def test_a_damaged_file_counts_as_none_and_is_replaced(state: Path, content: bytes) -> None:
    run_once(1)
    (state / "last_look.json").write_bytes(content)
    report = run_once(2)
    assert report.verdict is Verdict.OK and report.facts["counting"]["increase"] is None
    age(state, 100)
    assert run_once(3).facts["counting"]["increase"] == 1


def test_a_symlink_is_not_followed(state: Path, tmp_path: Path) -> None:
    state.mkdir(parents=True, mode=0o700)
    other = tmp_path / "precious"
    other.write_text("precious")
    (state / "last_look.json").symlink_to(other)
    assert run_once(1).verdict is Verdict.OK
    assert other.read_text() == "precious" and not (state / "last_look.json").is_symlink()


def test_a_fifo_in_its_place_does_not_block_a_run(state: Path) -> None:
    state.mkdir(parents=True, mode=0o700)
    os.mkfifo(state / "last_look.json")
    assert run_once(1).verdict is Verdict.OK


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
def test_an_untrusted_directory_is_not_used_and_reported_once(state: Path, spoil: object) -> None:
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
    assert "not this user's alone" in run_once(1).facts["runner"]["last_look"]
    assert os.listdir(state) == []


def test_no_file_is_made_without_counters(state: Path) -> None:
    run(Host(), [Probe("idle", lambda host, thresholds: iter(()), Thresholds())], deadline_seconds=60)
    assert not state.exists()


def test_a_recorded_machine_has_its_own_file_which_is_not_written(state: Path, tmp_path: Path) -> None:
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
    assert report.facts["counting"] == {"increase": 7, "last_look": "compared with snapshots 1000 to 1000 s old"}
    assert (machine / "laggard/last_look.json").read_bytes() == before and not state.exists()


@pytest.mark.parametrize("missing", ["proc/sys/kernel/random/boot_id", "proc/uptime"])
def test_without_boot_id_or_uptime_the_report_says_why_increases_are_unknown(tmp_path: Path, missing: str) -> None:
    for path, text in {"proc/sys/kernel/random/boot_id": BOOT, "proc/uptime": "100.0 1.0"}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("" if path == missing else text)
    (tmp_path / missing).unlink()
    report = run(Host(str(tmp_path)), [probe(8)], deadline_seconds=60)
    assert report.verdict is Verdict.OK and missing in report.facts["counting"]["last_look"]


def test_the_directory_for_state() -> None:
    assert state_dir({"LAGGARD_STATE_DIR": "/x", "XDG_RUNTIME_DIR": "/y"}) == "/x"
    if os.geteuid() == 0:
        assert state_dir({"XDG_RUNTIME_DIR": "/y"}) == "/run/laggard/state"
    else:
        assert state_dir({"XDG_RUNTIME_DIR": "/y"}) == "/y/laggard"
        assert state_dir({}) == f"/tmp/laggard-{os.geteuid()}"
