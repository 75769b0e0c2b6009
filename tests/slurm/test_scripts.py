"""The scripts of deploy/slurm: shellcheck finds nothing in them, and as shipped they change nothing."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support.paths import REPOSITORY
from support.rows import rows

SCRIPTS = REPOSITORY / "deploy" / "slurm"
ENTRIES = ("prolog.sh", "prolog-gang.sh", "epilog.sh", "healthcheck.sh")


def gate(folder: Path, body: str, conf: str = "") -> None:
    """The scripts with these lines in gate.conf, and a laggard that is a script of bash and notes its words."""
    laggard = folder / "laggard"
    shutil.copytree(SCRIPTS, folder / "slurm")
    laggard.write_text(f'#!/bin/bash\necho "$SLURM_CONF $@ " >>{folder}/words\n{body}\n')
    laggard.chmod(0o755)
    with (folder / "slurm/gate.conf").open("a") as file:
        file.write(f"LAGGARD={laggard}\nDISABLED={folder}/disabled\nRUN={folder}/run\n{conf}")


def called(folder: Path, script: str = "prolog.sh", **environ: str) -> subprocess.CompletedProcess[str]:
    command = [str(folder / "slurm" / script)]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300)


def words_of(folder: Path) -> list[str]:
    """The words of each laggard that ran, and before them SLURM_CONF."""
    path = folder / "words"
    return path.read_text().splitlines() if path.exists() else []


def test_the_setup_is_checked_once_after_a_boot_and_what_is_said_is_one_line(tmp_path: Path) -> None:
    conf = f"CHECKED={tmp_path}/checked\nMODE=enforce\nSLURM_CONF=/a/slurm.conf\n"
    gate(tmp_path, 'echo X\necho "gate: pass, Y"', conf)
    for _ in range(2):
        done = called(tmp_path)
        assert (done.returncode, done.stderr) == (0, "pass: Y; X\n")
    called(tmp_path, "check.sh")
    assert ["--check-gate" in line for line in words_of(tmp_path)] == [True, False, True]
    assert all(line.startswith("/a/slurm.conf healthcheck ") for line in words_of(tmp_path))


@pytest.mark.parametrize("name", [*ENTRIES, "check.sh", "gate.sh", "gate.conf", "idle-rings.sh", "idle-ring.sh"])
def test_shellcheck_finds_nothing(name: str) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("needs shellcheck: scripts/setup --system installs it on Debian")
    words = ("-x", "-s", "bash", *(("-e", "SC2034") if name.startswith("gate.") else ()))  # what it sets others read
    done = subprocess.run(["shellcheck", *words, str(SCRIPTS / name)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize("conf", [None, "MODE=enforce\nCOLLECTOR=none\n"], ids=["as_shipped", "enforcing"])
def test_without_a_path_and_without_laggard_nothing_is_rejected(name: str, conf: str | None, tmp_path: Path) -> None:
    """SLURM gives its scripts no PATH; here they also do not find laggard at its path."""
    gate(tmp_path, "", f"LAGGARD={tmp_path}/nowhere\n{conf or ''}")
    done = called(tmp_path, name)
    assert done.returncode == 0 and "nowhere" in done.stderr


@pytest.mark.parametrize("name", ["prolog.sh", "prolog-gang.sh", "epilog.sh"])
@pytest.mark.parametrize(
    ("line", "status"),
    [("gate: reject", 1), ("gate: pass, nothing critical", 0), ("gate: rejected", 0), ("", 0)],
)
def test_only_the_gates_own_line_rejects(name: str, line: str, status: int, tmp_path: Path) -> None:
    gate(tmp_path, f'echo "laggard: X"\necho "{line}"\nexit 1')
    done = called(tmp_path, name, SLURM_JOB_GPUS="0,3")
    assert done.returncode == status and "laggard: X" in done.stderr
    profile = name.partition("-gang")[0].removesuffix(".sh")
    (words,) = words_of(tmp_path)
    assert words.startswith(f" healthcheck --profile {profile} --gate report-only ")
    assert " --drain " in words and words.endswith(" --gpus 0,3 ")
    (tmp_path / "disabled").touch()
    assert called(tmp_path, name, SLURM_JOB_GPUS="0,3").returncode == 0 and len(words_of(tmp_path)) == 1


def test_gate_conf_is_as_harmless_as_no_gate_conf() -> None:
    lines = [line for line in (SCRIPTS / "gate.conf").read_text().splitlines() if line and not line.startswith("#")]
    assert lines == ["MODE=report-only"]


@pytest.mark.parametrize("seconds", ["15s", "1.5", "-1", "0", "x[$(exit)]", ""])
def test_a_limit_that_is_no_number_drains_no_node(seconds: str, tmp_path: Path) -> None:
    """bash's own error about it would be exit status 1."""
    gate(tmp_path, 'echo "gate: pass, Y"', f"GATE_SECONDS='{seconds}'\n")
    done = called(tmp_path)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, "pass: Y"), done.stderr
    assert "laggard: GATE_SECONDS takes a whole number" in done.stderr


def test_laggard_is_told_to_end_before_it_is_killed(tmp_path: Path) -> None:
    gate(tmp_path, 'echo "gate: pass, Y"', "GATE_SECONDS=9\n")
    called(tmp_path)
    assert " --deadline 7 " in words_of(tmp_path)[0]


@pytest.mark.slow
def test_who_hangs_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    """A prolog must not leave behind what may drain the node when the job runs."""
    lock = tmp_path / "lock"
    body = f"trap '' TERM INT HUP; exec 9>{lock}; flock 9; echo began\n(sleep 1000 & sleep 1000)\n"
    gate(tmp_path, body, f"GATE_SECONDS=2\nMODE=enforce\nCHECKED={tmp_path}/checked\n")
    done = called(tmp_path)
    assert (done.returncode, done.stderr) == (0, "pass: no answer within 2 s; began\n")
    subprocess.run(["flock", "-w", "300", str(lock), "true"], check=True)  # held by each of the three processes
    assert (tmp_path / "checked").read_text() == "", "the setup is checked another time"


def test_a_wrong_setup_is_told_until_it_is_right_and_a_change_is_checked_again(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.touch()
    body = f'[ -e {wrong} ] && echo "gate: WRONG SETUP: X"; echo "gate: pass, Y"'
    gate(tmp_path, body, f"MODE=enforce\nCHECKED={tmp_path}/checked\n")
    for step in ("wrong", "still wrong", "right", "checked", "changed"):
        if step == "right":
            wrong.unlink()
        if step == "changed":
            until = (tmp_path / "checked").stat().st_mtime_ns + 10**9
            os.utime(tmp_path / "slurm/gate.conf", ns=(until, until))
        called(tmp_path)
    assert ["--check-gate" in words for words in words_of(tmp_path)] == [True, True, True, False, True]


@rows("slurm/wrong_files")
def test_check_sh_names_what_is_wrong_in_the_file(conf: str, complaint: str, tmp_path: Path) -> None:
    gate(tmp_path, "echo set up", conf)
    done = called(tmp_path, "check.sh")
    assert done.returncode == 1 and complaint in done.stdout and done.stdout.count("\n") == 1, done


def test_a_health_check_that_is_switched_off_says_so(tmp_path: Path) -> None:
    (tmp_path / "disabled").touch()
    gate(tmp_path, 'echo "gate: switched off"')
    called(tmp_path)
    assert not words_of(tmp_path), "a prolog that is switched off starts nothing"
    done = called(tmp_path, "healthcheck.sh")
    assert (done.returncode, done.stderr) == (0, "pass: switched off\n")
    assert f" --kill-switch {tmp_path}/disabled " in words_of(tmp_path)[0]


def test_prolog_and_epilog_write_down_the_jobs_in_a_bounded_file(tmp_path: Path) -> None:
    """And a resume forgets those that failed before it."""
    gate(tmp_path, '[ ! -e "${0%/*}/resumed" ] || echo "slurm: n1 was resumed by somebody: reports"', "JOB_LINES=8\n")
    (tmp_path / "run").mkdir()
    record = tmp_path / "run/gate-jobs"
    job = {"SLURM_JOB_ID": "17", "SLURM_JOB_UID": "1000"}
    called(tmp_path, "prolog.sh", **job)
    called(tmp_path, "epilog.sh", **job, SLURM_JOB_EXIT_CODE2="1:0")
    lines = [line.split() for line in record.read_text().splitlines()]
    assert [(it[0], *it[2:]) for it in lines] == [("start", "17", "1000"), ("end", "17", "1000", "1:0")]
    assert (tmp_path / "run/gate-changed").exists(), "the next prolog and the agent look themselves"
    called(tmp_path, "prolog.sh", SLURM_JOB_ID="1; x", SLURM_JOB_UID="1000")
    assert len(record.read_text().splitlines()) == 2
    for _ in range(9):
        called(tmp_path, "epilog.sh", **job, SLURM_JOB_EXIT_CODE2="0:0")
    assert len(record.read_text().splitlines()) <= 8
    (tmp_path / "resumed").touch()
    called(tmp_path, "healthcheck.sh")
    assert not record.read_text()
