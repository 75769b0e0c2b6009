"""A campaign's trials and study: killed, resumed, two at once, a full disk, and whatever a command may do."""

import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.waiting import wait_for

from laggard.kit.errors import UsageError
from laggard.tune.campaign import Budget, Campaign
from laggard.tune.plan import Configuration, Outcome, Parameter, Plan, Proposal, Space, Status
from laggard.tune.study import Study
from laggard.tune.trial import failure_of, run_command

SPACE = Space((Parameter("speed", (1, 2, 4, 8), 1), Parameter("switch", (False, True), False)))
CAMPAIGN = textwrap.dedent(
    """
    import sys, time
    from pathlib import Path
    sys.path.insert(0, sys.argv[1])
    from test_campaign_parts import SPACE, measured
    from laggard.tune.campaign import Budget, Campaign
    from laggard.tune.plan import Plan
    from laggard.tune.study import Study
    path = Path(sys.argv[2])
    with Study(path, "test", SPACE) as study:
        Campaign(SPACE, Plan(), Budget(40), study, path.parent).run(measured, lambda each: print("trial", flush=True))
    """
)
PARTS = textwrap.dedent(
    """
    import time
    from laggard.tune.plan import Outcome, Status
    from laggard.tune.plan import Parameter, Space
    SPACE = Space((Parameter("speed", (1, 2, 4, 8), 1), Parameter("switch", (False, True), False)))
    def measured(configuration, folder):
        time.sleep(0.05)
        return Outcome(Status.OK, 1.0 / configuration["speed"])
    """
)


def measured(configuration: Configuration, folder: Path) -> Outcome:
    assert isinstance(configuration["speed"], int)
    return Outcome(Status.OK, 1.0 / configuration["speed"])


def run_in(path: Path, trials: int = 40) -> tuple[list[bool], Study]:
    """Runs the campaign to its end; returns which trials were resumed."""
    resumed: list[bool] = []
    with Study(path, "test", SPACE) as study:
        campaign = Campaign(SPACE, Plan(), Budget(trials), study, path.parent)
        found = campaign.run(measured, lambda each: resumed.append(each.resumed)).found
        assert found.best is not None and found.best.configuration["speed"] == 8
    return resumed, study


def test_a_finished_campaign_measures_nothing_again(tmp_path: Path) -> None:
    first, _ = run_in(tmp_path / "study.db")
    again, _ = run_in(tmp_path / "study.db")
    assert not any(first) and all(again) and len(first) == len(again)


def test_a_longer_campaign_goes_on_from_a_shorter_one(tmp_path: Path) -> None:
    run_in(tmp_path / "study.db", 25)
    resumed, _ = run_in(tmp_path / "study.db", 60)
    assert sum(resumed) >= 10, "what was measured was measured again"


@pytest.mark.slow
def test_a_killed_campaign_loses_the_running_trial_alone(tmp_path: Path) -> None:
    (tmp_path / "test_campaign_parts.py").write_text(PARTS)
    path = tmp_path / "study.db"
    process = subprocess.Popen(
        [sys.executable, "-c", CAMPAIGN, str(tmp_path), str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    told = sum(bool(process.stdout.readline()) for _ in range(6))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with Study(path, "test", SPACE) as study:
        kept = sum(each.outcome.status is Status.OK for each in study.trials())
    assert told == 6 and kept >= 6, f"{told} trials ended, {kept} were kept"
    resumed, _ = run_in(path)
    assert sum(resumed) >= kept - 1, f"{kept} trials were kept, {sum(resumed)} were used"


def test_two_tuners_do_not_share_a_study(tmp_path: Path) -> None:
    with Study(tmp_path / "study.db", "test", SPACE), pytest.raises(UsageError, match="another tuner"):
        Study(tmp_path / "study.db", "test", SPACE)
    Study(tmp_path / "study.db", "test", SPACE).__exit__(None, None, None)


def test_a_study_of_another_space_is_refused(tmp_path: Path) -> None:
    with Study(tmp_path / "study.db", "test", SPACE):
        pass
    other = Space((Parameter("speed", (1, 2), 1),))
    with pytest.raises(UsageError, match="other parameters"):
        Study(tmp_path / "study.db", "test", other)


def test_a_file_that_is_no_study_is_refused(tmp_path: Path) -> None:
    (tmp_path / "study.db").write_text("not a database, but long enough to be taken for one" * 20)
    with pytest.raises(UsageError, match="no study"):
        Study(tmp_path / "study.db", "test", SPACE)


def test_optuna_reads_the_study(tmp_path: Path) -> None:
    import optuna

    run_in(tmp_path / "study.db")
    study = optuna.load_study(study_name="test", storage=f"sqlite:///{tmp_path / 'study.db'}")
    assert study.best_params["speed"] == 8


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk: SQLite gets an error from write() at the same place."""
    path = tmp_path / "study.db"
    with Study(path, "test", SPACE) as study, study.trial(Proposal({"speed": 1, "switch": False}, "default")) as own:
        own.outcome = Outcome(Status.OK, 1.0)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Study(path, "test", SPACE) as study:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, before[1]))
        try:
            with pytest.raises(UsageError, match="full"):
                Campaign(SPACE, Plan(), Budget(60), study, tmp_path).run(measured, lambda each: None)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    resumed, _ = run_in(path)
    assert sum(resumed) >= 1, "what was measured before the disk was full is lost"


def ran(tmp_path: Path, script: str, deadline: float = 60.0) -> tuple[Outcome | None, str]:
    ended = run_command([sys.executable, "-S", "-E", "-c", script], dict(os.environ), tmp_path, deadline)
    return failure_of(ended), ended.output


@pytest.mark.parametrize(
    ("script", "status", "detail"),
    [
        ("raise SystemExit('no such device')", Status.CRASHED, "no such device"),
        ("import os; os.kill(os.getpid(), 11)", Status.CRASHED, "signal 11"),
        ("raise RuntimeError('CUDA out of memory. Tried to allocate 2 GiB')", Status.OUT_OF_MEMORY, "2 GiB"),
        ("import time; time.sleep(600)", Status.HUNG, "killed"),
    ],
)
def test_why_a_trial_failed(tmp_path: Path, script: str, status: Status, detail: str) -> None:
    outcome, _ = ran(tmp_path, script, 2.0 if status is Status.HUNG else 60.0)
    assert outcome is not None and outcome.status is status and detail in outcome.detail, outcome


@pytest.mark.slow  # who ignores SIGTERM is given seconds
def test_a_group_is_killed_wholly_and_output_is_bounded(tmp_path: Path) -> None:
    """A rank that ignores SIGTERM and outlives its launcher is gone when the trial has ended."""
    script = textwrap.dedent(
        f"""
        import os, signal, time
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
            time.sleep(600)
        while not os.path.exists({str(tmp_path / "pid")!r}) or not open({str(tmp_path / "pid")!r}).read():
            time.sleep(0.01)
        for _ in range(200):
            print("x" * 100000)
        """
    )
    outcome, output = ran(tmp_path, script)
    assert outcome is None and 1 << 20 < len(output) <= 4 << 20
    pid = int((tmp_path / "pid").read_text())
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), lambda: "a process of the trial is still there", 60)
