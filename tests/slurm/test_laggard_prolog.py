"""laggard-prolog in slurm.conf: no shell starts where the agent vouches for the node; else it is prolog.sh."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from support.laggard_ask import SOURCE, agent_that_says
from support.paths import REPOSITORY

HASH = "0123456789abcdef" * 2
PASS = (0, "laggard: nothing critical (the agent, 5 s ago); gate: pass, nothing critical\n")
WHOLE = (0, "laggard: X; gate: pass, Y\n")
SHELL = (7, "a shell\n")


class Node:
    """The gate's scripts, with a laggard-prolog whose /run/laggard is in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run, self.socket = folder, folder / "run", folder / "run/agent/gate.sock"
        shutil.copytree(REPOSITORY / "deploy/slurm", folder / "slurm")
        words = ("-O1", f'-DRUN="{self.run}"', "-o", str(folder / "slurm/laggard-prolog"), str(SOURCE))
        subprocess.run(["cc", *words], check=True)
        shutil.copy(folder / "slurm/laggard-prolog", folder / "slurm/laggard-ask")
        (self.run / "agent").mkdir(parents=True)
        for path in (self.run, self.run / "agent"):
            path.chmod(0o755)
        (folder / "laggard").write_text('#!/bin/bash\necho "laggard: X"; echo "gate: pass, Y"\n')
        (folder / "laggard").chmod(0o755)
        self.configure("")

    def configure(self, more: str) -> None:
        here = self.folder
        own = f"LAGGARD={here}/laggard\nDISABLED={here}/disabled\nRUN={self.run}\nCHECKED={self.run}/gate-checked\n"
        (here / "slurm/gate.conf").write_text(own + more)
        for path in (here / "slurm/gate.conf", here / "laggard"):
            os.utime(path, (time.time() - 1000, time.time() - 1000))

    def look(self) -> None:
        """Runs prolog.sh as a whole, which has a ticket."""
        (self.run / "gate-ticket").write_text(f"gate/1 prolog {HASH} {ticks()}\n")
        with agent_that_says(self.socket, b"CHECK old\n"):
            assert self.call("prolog.sh") == WHOLE

    def without_shell(self) -> None:
        """From now on prolog.sh is another script."""
        (self.folder / "slurm/prolog.sh").write_text("#!/bin/bash\necho a shell >&2\nexit 7\n")

    def call(self, script: str = "laggard-prolog", **environ: str) -> tuple[int, str]:
        command = [str(self.folder / "slurm" / script)]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300)
        return done.returncode, done.stderr


def ticks() -> int:
    return int(float(Path("/proc/uptime").read_text().split()[0]) * 100)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    return Node(tmp_path)


def test_no_shell_starts_where_the_agent_vouches(node: Node) -> None:
    node.look()
    (node.run / "gate-changed").write_text("4200\n")
    node.without_shell()
    with agent_that_says(node.socket, b"PASS 5\n") as agent:
        assert node.call(SLURM_JOB_GPUS="0,2-3") == PASS
        assert node.call() == PASS
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert agent.asked == [f"gate/1 prolog {HASH} {boot} 42 {gpus} 5000\n" for gpus in ("0,2-3", "-")]


def test_where_it_does_not_prolog_sh_runs_and_does_not_ask_again(node: Node) -> None:
    node.look()
    (node.run / "gate-turn-prolog").unlink()
    with agent_that_says(node.socket, b"CHECK critical\n") as agent:
        assert node.call() == WHOLE
    assert len(agent.asked) == 1
    assert "laggard: X; gate: pass, Y" in node.call()[1], "without an agent"


@pytest.mark.parametrize(
    "conf",
    [
        "[ -e /a ] && FLAGS=(--active)\n",
        "QUICK=$(echo on)\n",
        "MODE=enforce\nCOLLECTOR=none\n",
        "FLAGS=(--skip disks)\n",
    ],
)
def test_a_gate_that_may_ask_something_else_of_the_next_job_writes_nothing_down(conf: str, node: Node) -> None:
    """Nor one whose setup was not checked yet."""
    node.configure(conf)
    node.look()
    assert not (node.run / "gate-asks").exists()


CASES = [
    "no asks",
    "half",
    "more",
    "old",
    "late",
    "conf",
    "laggard",
    "disabled",
    "changed",
    "gpus",
    "open",
    "link",
    "hash",
]


@pytest.mark.parametrize("case", CASES)
def test_whatever_is_not_as_it_was_written_down_is_for_the_shell(case: str, node: Node) -> None:
    node.look()
    node.without_shell()
    asks, environ = node.run / "gate-asks", {}
    ticket, *rest = asks.read_text().splitlines(keepends=True)
    if case == "no asks":
        asks.unlink()
    elif case == "half":
        asks.write_text("".join((ticket, *rest))[:-1])
    elif case == "more":
        asks.write_text("".join((ticket, *rest, "x\n")))
    elif case in ("old", "late"):
        at = ticks() + (-360_001 if case == "old" else 100_000)
        asks.write_text("".join((f"gate/1 prolog {HASH} {at}\n", *rest)))
    elif case in ("conf", "laggard"):
        path = node.folder / ("slurm/gate.conf" if case == "conf" else "laggard")
        os.utime(path, (time.time() + 1000, time.time() + 1000))
    elif case == "disabled":
        (node.folder / "disabled").touch()
    elif case == "changed":
        (node.run / "gate-changed").write_text("x\n")
    elif case == "gpus":
        environ = {"SLURM_JOB_GPUS": "0;1"}
    elif case == "open":
        node.run.chmod(0o777)
    elif case == "link":
        asks.rename(node.folder / "asks")
        asks.symlink_to(node.folder / "asks")
    elif case == "hash":
        asks.write_text("".join((ticket.replace("0123", "012 "), *rest)))
    with agent_that_says(node.socket, b"PASS 5\n") as agent:
        assert node.call(**environ) == SHELL
    assert not agent.asked


@pytest.mark.skipif(os.geteuid() != 0, reason="takes another user's files: run as root")
@pytest.mark.parametrize("what", ["gate-asks", "gate-changed", "."])
def test_what_another_user_wrote_is_for_the_shell(what: str, node: Node) -> None:
    node.look()
    node.without_shell()
    (node.run / "gate-changed").write_text("4200\n")
    os.chown(node.run / what, 4242, 4242)
    with agent_that_says(node.socket, b"PASS 5\n") as agent:
        assert node.call() == SHELL
    assert not agent.asked


def test_without_prolog_sh_the_job_runs(node: Node) -> None:
    """An exit status of 1 would drain the node."""
    (node.folder / "slurm/prolog.sh").unlink()
    status, said = node.call()
    assert status == 0 and "cannot run" in said
