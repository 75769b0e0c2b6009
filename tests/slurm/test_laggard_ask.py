"""laggard-ask passes a job for one line of a trusted agent, and for nothing else that anybody may put in its way."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from support.laggard_ask import StandIn, agent_that_says, as_user

PASSES, LOOK, NO_ANSWER = 0, 1, 2
SOMEBODY = 4242
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="takes other users' processes: run as root")

Ask = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Stands in for /run/laggard, with the agent's folder."""
    (tmp_path / "run/agent").mkdir(parents=True)
    for path in (tmp_path / "run", tmp_path / "run/agent"):
        path.chmod(0o755)
    return tmp_path / "run"


@pytest.fixture
def ask(laggard_ask: Path, run: Path) -> Ask:
    def asks(first: int = 60, most: int = 60, path: Path = run / "agent/gate.sock") -> subprocess.CompletedProcess[str]:
        words = [str(laggard_ask), "ask", str(path), str(first), str(most), "gate/1 prolog question"]
        return subprocess.run(words, capture_output=True, text=True, timeout=300, env={})

    return asks


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"PASS 12\n", PASSES),
        (b"WAIT\nPASS 0\n", PASSES),
        (b"CHECK old\n", LOOK),
        (b"WAIT\nCHECK stricter\n", LOOK),
        (b"PASS 12\nCHECK old\n", PASSES),  # the first line is the answer
        (b"PASS 12", NO_ANSWER),
        (b"PASS \n", NO_ANSWER),
        (b"PASS -1\n", NO_ANSWER),
        (b"PASS 1.5\n", NO_ANSWER),
        (b"PASS 123456\n", NO_ANSWER),
        (b"PASS 12 \n", NO_ANSWER),
        (b"PASS 12\r\n", NO_ANSWER),
        (b"PASS 1\x00\n", NO_ANSWER),
        (b" PASS 12\n", NO_ANSWER),
        (b"pass 12\n", NO_ANSWER),
        (b"WAIT\nWAIT\nPASS 12\n", NO_ANSWER),
        (b"CHECK $(reboot)\n", NO_ANSWER),
        (b"CHECK \n", NO_ANSWER),
        (b"\n", NO_ANSWER),
        (b"", NO_ANSWER),
        (b"\xff" * 64 + b"\n", NO_ANSWER),
        (b"PASS " + b"1" * 10_000_000 + b"\n", NO_ANSWER),
        (b"x" * 10_000_000, NO_ANSWER),
        (b"HTTP/1.0 200 OK\r\n\r\nPASS 12\n", NO_ANSWER),
    ],
)
def test_one_line_passes_and_no_other(text: bytes, status: int, run: Path, ask: Ask) -> None:
    with agent_that_says(run / "agent/gate.sock", text) as agent:
        done = ask()
    assert done.returncode == status and done.stdout == "", done
    assert agent.asked == ["gate/1 prolog question\n"]
    if status == PASSES:
        assert done.stderr.startswith("laggard: nothing critical (the agent, "), done.stderr
    assert len(done.stderr) < 300 and "reboot" not in done.stderr


@pytest.mark.parametrize(
    "first", [b"", b"PA", b"WAIT\n", b"WAIT\nPASS 1"], ids=["nothing", "half", "wait", "half_after"]
)
def test_an_agent_that_hangs_is_not_waited_for(first: bytes, run: Path, ask: Ask) -> None:
    over: list[socket.socket] = []

    def answers(connection: socket.socket, question: bytes) -> None:
        connection.sendall(first)
        over.append(connection.dup())  # stays open

    agent = StandIn(run / "agent/gate.sock", answers)
    done = ask(1, 2)
    agent.close()
    for each in over:
        each.close()
    assert done.returncode == NO_ANSWER and "does not answer in time" in done.stderr


def test_an_agent_that_does_not_even_accept_is_not_waited_for(run: Path, ask: Ask) -> None:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as listener:
        listener.bind(str(run / "agent/gate.sock"))
        listener.listen(0)
        done = [ask(1, 1) for _ in range(3)]  # the queue is full for the last
    assert [each.returncode for each in done] == [NO_ANSWER] * 3
    assert ask().returncode == NO_ANSWER, "nobody listens any more"


@pytest.mark.parametrize("case", ["folder", "above", "link", "socket_link", "file", "nothing", "relative", "long"])
def test_a_place_where_others_could_put_a_socket_is_not_asked(case: str, run: Path, ask: Ask, tmp_path: Path) -> None:
    with agent_that_says(run / "agent/gate.sock", b"PASS 1\n") as agent:
        assert ask().returncode == PASSES
        path = run / "agent/gate.sock"
        if case == "folder":
            (run / "agent").chmod(0o775)
        elif case == "above":
            run.chmod(0o1777)
        elif case == "link":
            (run / "other").symlink_to(run / "agent")
            path = run / "other/gate.sock"
        elif case == "socket_link":
            (run / "agent/other.sock").symlink_to(path)
            path = run / "agent/other.sock"
        elif case == "file":
            path = run / "agent/file"
            path.touch()
        elif case == "nothing":
            path = run / "agent/nothing"
        elif case == "relative":
            path = Path("gate.sock")
        elif case == "long":
            path = run / "agent" / ("x" * 200)
        assert ask(path=path).returncode == NO_ANSWER
        assert len(agent.asked) == 1


@needs_root
@pytest.mark.parametrize(
    ("folder", "owner", "listens", "status"),
    [
        (0, 0, SOMEBODY, NO_ANSWER),
        (0, SOMEBODY, 0, NO_ANSWER),
        (SOMEBODY, SOMEBODY, SOMEBODY, PASSES),  # the agent's own, to whom root gave the folder
        (SOMEBODY, 0, SOMEBODY + 1, NO_ANSWER),
        (SOMEBODY, SOMEBODY + 1, SOMEBODY, NO_ANSWER),
        (SOMEBODY, 0, 0, PASSES),
    ],
)
def test_another_users_agent_is_not_believed(
    folder: int, owner: int, listens: int, status: int, run: Path, ask: Ask
) -> None:
    """`folder`, `owner`, `listens`: whose the folder, the socket, and the process at it are."""
    path = run / "agent/gate.sock"
    pid = as_user(listens, path, b"PASS 1\n")
    try:
        os.chown(run / "agent", folder, folder)
        os.chown(path, owner, owner)
        done = ask()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert done.returncode == status, done


@needs_root
def test_a_folder_above_that_is_another_users_is_not_believed(run: Path, ask: Ask) -> None:
    with agent_that_says(run / "agent/gate.sock", b"PASS 1\n"):
        os.chown(run, SOMEBODY, SOMEBODY)
        assert ask().returncode == NO_ANSWER


def test_a_lock_is_the_callers_until_it_ends(laggard_ask: Path, tmp_path: Path) -> None:
    holder = f"exec 9>>{tmp_path}/lock; {laggard_ask} lock 9 60 || exit 1; echo held; read _"
    first = subprocess.Popen(["bash", "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert first.stdin is not None and first.stdout is not None and first.stdout.readline() == "held\n"
    again = ["bash", "-c", f"exec 9>>{tmp_path}/lock; {laggard_ask} lock 9 $1", "bash"]
    assert subprocess.run([*again, "0"]).returncode == 1
    assert subprocess.run([*again, "1"]).returncode == 1
    waiting = subprocess.Popen([*again, "300"])
    time.sleep(0.2)
    assert waiting.poll() is None
    first.kill()
    assert waiting.wait(300) == 0, "the kernel took the lock away from who was killed"
    first.wait()
    first.stdin.close()
    first.stdout.close()


@pytest.mark.parametrize("words", [[], ["ask"], ["lock", "9"], ["lock", "x", "1"], ["lock", "9", "-1"], ["log"]])
def test_wrong_usage_is_told(words: list[str], laggard_ask: Path) -> None:
    assert subprocess.run([str(laggard_ask), *words], capture_output=True).returncode == 64
