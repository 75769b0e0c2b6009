"""A prolog asks the agent first, and starts laggard where it must; of many at once one does. The scripts alone."""

import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.gate_agent import StandIn, agent_that_says
from support.paths import REPOSITORY
from support.rows import rows
from support.waiting import wait_for

SCRIPTS = REPOSITORY / "deploy" / "slurm"
HASH = "0123456789abcdef" * 2
PASS = "pass: nothing critical (the agent, 5 s ago)\n"
WHOLE = "pass: Y; laggard: X\n"

Done = "subprocess.CompletedProcess[str]"


class Node:
    """The gate's scripts on a node, whose laggard is a script of bash that counts how often it runs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run_folder, self.socket = folder, folder / "run", folder / "run/agent/gate.sock"
        shutil.copytree(SCRIPTS, folder / "slurm")
        (folder / "run/agent").mkdir(parents=True)
        for path in (folder / "run", folder / "run/agent"):
            path.chmod(0o755)
        (folder / "laggard").touch(0o755)
        self.laggard('echo "laggard: X"; echo "gate: pass, Y"')
        self.configure("")

    def laggard(self, body: str) -> None:
        words = 'echo "${LAGGARD_GATE_TICKET:-none} $*"'
        (self.folder / "laggard").write_text(f"#!/bin/bash\n{words} >>{self.folder}/runs\n{body}\n")

    def configure(self, more: str) -> None:
        """Writes gate.conf, as old as laggard: older than a ticket of today."""
        here = self.folder
        own = f"LAGGARD={here}/laggard\nDISABLED={here}/disabled\nRUN={here}/run\nCHECKED={here}/run/gate-checked\n"
        own += f"PYTHON={sys.executable}\n"
        (here / "slurm/gate.conf").write_text(own + more)
        for path in (here / "slurm/gate.conf", here / "laggard"):
            os.utime(path, (time.time() - 1000, time.time() - 1000))

    def ticket(self, text: str | None = None) -> Path:
        path = self.run_folder / "gate-ticket"
        path.write_text(text if text is not None else f"gate/1 prolog {HASH} {ticks()}\n")
        return path

    def start(self, script: str = "prolog.sh", **environ: str) -> subprocess.Popen[str]:
        command, pipe = [str(self.folder / "slurm" / script)], subprocess.PIPE
        return subprocess.Popen(command, env=environ, stdout=pipe, stderr=pipe, text=True)

    def call(self, script: str = "prolog.sh", **environ: str) -> tuple[int, str]:
        return ended(self.start(script, **environ))

    @property
    def runs(self) -> list[str]:
        """The words of each laggard that ran."""
        path = self.folder / "runs"
        return path.read_text().splitlines() if path.exists() else []


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, errors = process.communicate(timeout=300)
    return process.returncode, errors


def ticks() -> int:
    return int(Path("/proc/uptime").read_text().split()[0].replace(".", ""))  # a float may be one less


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture
def agent(node: Node) -> Iterator[StandIn]:
    """An agent that vouches for the node."""
    with agent_that_says(node.socket, b"PASS 5\n") as stand_in:
        yield stand_in


def test_a_prolog_that_the_agent_vouches_for_starts_no_laggard(node: Node, agent: StandIn) -> None:
    node.ticket()
    assert node.call() == (0, PASS)
    assert node.call(SLURM_JOB_GPUS="0,2-3", SLURM_JOB_ID="17") == (0, PASS)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert agent.asked == [f"/gate/1/prolog/{HASH}/{boot}/0/{gpus}/5000" for gpus in ("-", "0,2-3")]
    assert not node.runs


@pytest.mark.parametrize("way", ["enforcing", "harmless_flags"])
def test_so_it_does_as_it_is_configured(way: str, node: Node, agent: StandIn) -> None:
    (node.run_folder / "gate-checked").write_text("checked\n")
    node.configure("MODE=enforce\nCOLLECTOR=none\n" if way == "enforcing" else "FLAGS=(--verbose --slurm-node n1.a)\n")
    node.ticket()
    assert node.call() == (0, PASS) and not node.runs


@pytest.mark.parametrize("text", [b"CHECK old\n", b"", b"gate: reject\n"], ids=["old", "nothing", "reject"])
def test_whatever_else_an_agent_says_laggard_decides(text: bytes, node: Node) -> None:
    node.ticket()
    with agent_that_says(node.socket, text) as agent:
        status, errors = node.call()
    assert status == 0 and errors.endswith(WHOLE) and len(node.runs) == len(agent.asked) == 1
    assert node.runs[0].startswith(f"{node.run_folder}/gate-ticket healthcheck --profile prolog --gate report-only ")


@rows("slurm/asking_more")
def test_a_gate_that_asks_for_more_than_the_agent_knows_does_not_ask_it(conf: str, node: Node, agent: StandIn) -> None:
    node.configure(conf)
    (node.run_folder / "gate-checked").write_text("checked\n")
    node.ticket()
    assert node.call() == (0, WHOLE if "verbose" not in conf else "laggard: X\ngate: pass, Y\npass: Y\n")
    assert len(node.runs) == 1 and node.runs[0].startswith("none ") and not agent.asked


def test_the_setup_is_checked_first(node: Node, agent: StandIn) -> None:
    node.configure("MODE=enforce\nCOLLECTOR=none\n")
    node.ticket()
    assert node.call() == (0, WHOLE) and "--check-gate" in node.runs[0]
    assert node.call() == (0, PASS)


@pytest.mark.parametrize("script", ["epilog.sh", "healthcheck.sh", "prolog-gang.sh"])
def test_the_other_scripts_do_not_ask(script: str, node: Node, agent: StandIn) -> None:
    node.ticket()
    assert node.call(script) == (0, WHOLE) and len(node.runs) == 1 and not agent.asked


@rows("slurm/tickets")
def test_a_ticket_that_does_not_count_is_written_anew(ticket: str, node: Node, agent: StandIn) -> None:
    path = node.ticket()
    if ticket.startswith("older"):
        young = node.folder / ("laggard" if "laggard" in ticket else "slurm/gate.conf")
        os.utime(young, (time.time() + 1000, time.time() + 1000))
    elif ticket == "a link":
        path.rename(node.folder / "elsewhere")
        path.symlink_to(node.folder / "elsewhere")
    elif ticket == "none":
        path.unlink()
    else:
        now = ticks()
        node.ticket(ticket.format(now=now, late=now + 100_000, old=max(0, now - 360_001)))
        if "{old}" in ticket and now < 360_001:
            pytest.skip("the machine runs for less than an hour")
    assert node.call() == (0, WHOLE) and not agent.asked
    assert len(node.runs) == 1 and node.runs[0].startswith(f"{node.run_folder}/gate-ticket ")


@pytest.mark.skipif(os.geteuid() != 0, reason="takes another user's files: run as root")
@pytest.mark.parametrize("what", ["gate-ticket", "gate-changed", "."])
def test_nothing_that_another_user_has_written_is_read(what: str, node: Node, agent: StandIn) -> None:
    node.ticket()
    (node.run_folder / "gate-changed").write_text("1\n")
    os.chown(node.run_folder / what, 4242, 4242)
    assert node.call() == (0, WHOLE) and not agent.asked


def test_what_the_gate_changed_has_to_be_in_the_agents_report(node: Node, agent: StandIn) -> None:
    """A drain, a resume or a rejected job: a report from before says nothing of what is now."""
    node.configure("MODE=report-only\n")
    node.laggard('echo "slurm: n1 was drained"; echo "gate: reject"')
    before = ticks()
    assert node.call("epilog.sh")[0] == 1
    node.ticket()
    assert node.call() == (0, PASS)
    newer = int(agent.asked[0].split("/")[6])
    assert before // 100 <= newer <= ticks() // 100
    node.laggard(
        'echo "slurm: n1 was resumed, it had been drained for: laggard: X"; echo "gate: pass, nothing critical"'
    )
    (node.run_folder / "gate-changed").write_text("7\n")
    assert node.call("healthcheck.sh")[0] == 0
    assert int((node.run_folder / "gate-changed").read_text()) > 7


@pytest.mark.parametrize(
    "said",
    [
        "slurm: n1 was drained",
        "slurm: n1 is drained already, for that",
        "slurm: n1 was resumed by somebody: reports of before stand for nothing",
        "gate: reject",
    ],
)
def test_after_a_change_the_next_prolog_runs_as_a_whole(said: str, node: Node, agent: StandIn) -> None:
    """Whoever resumes the node by hand tells laggard nothing: a whole check has to look."""
    ticket = node.ticket()
    node.laggard(f'echo "{said}"')
    node.call("healthcheck.sh")
    assert ticket.read_text() == ""
    node.laggard('echo "laggard: Y"; echo "gate: pass, nothing critical"')
    assert node.call()[0] == 0 and not agent.asked


@rows("slurm/asking_prologs")
def test_check_sh_says_whether_prologs_ask(case: str, told: str, node: Node) -> None:
    missing = {"python": "CURL=/nowhere\n", "nothing": "CURL=/nowhere\nPYTHON=/nowhere\n"}
    node.configure(f"{case}\n" if "=" in case else missing.get(case, ""))
    if case == "open":
        (node.run_folder / "agent").chmod(0o777)
    with agent_that_says(node.socket, b"CHECK question\n") as agent:
        if case == "no_agent":
            node.socket.unlink()
        elif case == "gone":
            agent.close()
        said = node.start("check.sh").communicate(timeout=300)[0]
    assert said.startswith(told.format(run=node.run_folder)), said


# --- many at once


def test_of_many_at_once_one_runs_laggard_and_all_have_its_verdict(node: Node) -> None:
    """Two: who came while it ran does not go by a check that began before it came, where that rejected a job."""
    node.configure("GATE_SECONDS=300\n")
    node.laggard('sleep 1; echo "laggard: X"; echo "gate: reject"')
    prologs = [node.start() for _ in range(40)]
    done = [ended(each) for each in prologs]
    assert {status for status, _ in done} == {1}
    assert all(errors.startswith("drain: laggard: X") for _, errors in done)
    assert len(node.runs) <= 3, node.runs
    assert sum("(of a check for several jobs)" in errors for _, errors in done) == 40 - len(node.runs)


def test_a_pass_counts_for_some_seconds_and_a_reject_for_nobody_who_came_later(node: Node) -> None:
    assert [node.call() for _ in range(2)] == [(0, WHOLE), (0, WHOLE.replace("X", "X (of a check for several jobs)"))]
    (node.run_folder / "gate-changed").write_text(f"{ticks()}\n")
    assert node.call() == (0, WHOLE), "since that check a node was drained"
    node.laggard('echo "gate: reject"')
    (node.run_folder / "gate-changed").write_text(f"{ticks()}\n")
    assert [node.call()[0] for _ in range(2)] == [1, 1]
    assert len(node.runs) == 4


def test_an_epilog_never_goes_by_what_was_before_it_came(node: Node) -> None:
    assert [node.call("epilog.sh") for _ in range(2)] == [(0, WHOLE)] * 2
    assert len(node.runs) == 2


@pytest.mark.parametrize("other", ["gpus", "conf", "old"])
def test_only_the_same_check_counts(other: str, node: Node) -> None:
    node.call(SLURM_JOB_GPUS="0")
    if other == "conf":
        node.configure("FLAGS=(--skip disks)\n")
    elif other == "old":
        kept = node.run_folder / "gate-turn-prolog-0"
        began, rest = kept.read_text().split(" ", 1)
        kept.write_text(f"{max(0, int(began) - 600)} {rest}")
    assert node.call(SLURM_JOB_GPUS="1" if other == "gpus" else "0") == (0, WHOLE)
    assert len(node.runs) == 2


@pytest.mark.parametrize(
    "text", ["", "x", "1 1\n", "{now} 1 x\n{words}\nX\n", "{now} 7\n{words}\nX\n", "{late} 1\n{words}\nX\n"]
)
def test_a_verdict_that_is_none_is_not_taken(text: str, node: Node) -> None:
    node.call()
    kept = node.run_folder / "gate-turn-prolog"
    words = kept.read_text().splitlines()[1]
    kept.write_text(text.format(now=ticks() + 100, late=ticks() + 100_000, words=words))
    assert node.call() == (0, WHOLE) and len(node.runs) == 2


def test_who_is_killed_leaves_its_turn_to_the_next(node: Node) -> None:
    node.configure("GATE_SECONDS=300\n")
    waits = f"[ -e {node.folder}/go ] || {{ echo $$ >{node.folder}/pid; exec sleep 1000; }}"
    node.laggard(f'{waits}; echo "laggard: X"; echo "gate: pass, Y"')
    first = node.start()
    wait_for((node.folder / "pid").exists)
    second = node.start()
    (node.folder / "go").touch()
    first.kill()
    assert ended(second) == (0, WHOLE)
    os.kill(int((node.folder / "pid").read_text()), signal.SIGKILL)  # which the killed one has left
    ended(first)


def test_who_does_not_get_its_turn_in_time_passes_and_says_so(node: Node) -> None:
    """As before: a gate that gets to no answer rejects no job."""
    node.configure("GATE_SECONDS=2\n")
    kept = node.run_folder / "gate-turn-prolog"
    with kept.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert node.call() == (0, "pass: no answer within 2 s\n") and not node.runs


def test_nobody_else_can_open_what_prologs_lock(node: Node) -> None:
    """Who can read a file can lock it, too: a user who did had every prolog end without a verdict, and pass."""
    before = os.umask(0o022)
    try:
        node.call()
        node.call(SLURM_JOB_GPUS="1")
    finally:
        os.umask(before)
    locked = list(node.run_folder.glob("gate-turn-*"))
    assert len(locked) == 2 and not any(stat.S_IMODE(each.stat().st_mode) & 0o077 for each in locked)


def test_a_laggard_that_breaks_breaks_once_for_all(node: Node) -> None:
    node.configure("GATE_SECONDS=300\n")
    node.laggard("sleep 1; echo Traceback; exit 1")
    done = [ended(each) for each in [node.start() for _ in range(20)]]
    assert {status for status, _ in done} == {0} and all("Traceback" in errors for _, errors in done)
    assert len(node.runs) <= 3


def test_without_a_program_that_locks_each_runs_its_own(node: Node) -> None:
    node.configure("FLOCK=/nowhere\n")
    assert [node.call() for _ in range(2)] == [(0, WHOLE)] * 2
    assert len(node.runs) == 2
