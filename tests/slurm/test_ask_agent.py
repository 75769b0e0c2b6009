"""By curl or a bare Python, gate.sh takes one line of an agent that is believed for an answer, and nothing else that
anybody may put in its way."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from support.gate_agent import HEAD, StandIn, agent_that_says
from support.paths import REPOSITORY
from support.rows import rows

GATE = REPOSITORY / "deploy" / "slurm" / "gate.sh"
SOMEBODY = 4242
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="takes other users' files: run as root")
ASKS = """\
. "$1"
RUN=$2 ASK_SECONDS=$3
ask_agent gate/1/prolog/question "$4"
status=$?
echo "${answer:-$why}"
exit "$status"
"""

Ask = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Stands in for /run/laggard, with the agent's folder."""
    (tmp_path / "run/agent").mkdir(parents=True)
    for path in (tmp_path / "run", tmp_path / "run/agent"):
        path.chmod(0o755)
    return tmp_path / "run"


@pytest.fixture(params=["curl", "python"])
def ask(run: Path, request: pytest.FixtureRequest) -> Ask:
    curl = shutil.which("curl") if request.param == "curl" else "/nowhere"
    if curl is None:
        pytest.skip("needs curl")

    def asks(first: int = 60, most: int = 60, folder: str = str(run)) -> subprocess.CompletedProcess[str]:
        script = ASKS.replace("\nRUN=", f"\nCURL={curl} PYTHON={sys.executable} RUN=", 1)
        words = ["bash", "-c", script, "bash", str(GATE), folder, str(first), str(most)]
        return subprocess.run(words, capture_output=True, text=True, timeout=300, env={}, cwd=run.parent)

    return asks


def told(text: bytes, answer: str, run: Path, ask: Ask) -> None:
    with agent_that_says(run / "agent/gate.sock", text) as agent:
        done = ask()
    words = answer or f"{run}/agent/gate.sock gives no answer that counts"
    assert (done.returncode, done.stdout, done.stderr) == (0 if answer else 1, f"{words}\n", "")
    assert agent.asked == ["/gate/1/prolog/question"]


@rows("slurm/answers")
def test_one_line_is_an_answer_and_no_other(text: str, answer: str, run: Path, ask: Ask) -> None:
    told(text.encode(), answer, run, ask)


@pytest.mark.parametrize(
    "text", [b"\xff" * 64 + b"\n", b"PASS " + b"1" * 10_000_000 + b"\n", b"x" * 10_000_000, HEAD + b"PASS 12\n"]
)
def test_what_is_no_line_is_no_answer(text: bytes, run: Path, ask: Ask) -> None:
    told(text, "", run, ask)


@pytest.mark.parametrize("first", [b"PASS 12\n", HEAD + b"PASS 12\n", HEAD.replace(b"200", b"500") + b"x\nPASS 12\n"])
def test_an_agent_that_does_not_begin_as_one_is_not_believed(first: bytes, run: Path, ask: Ask) -> None:
    agent = StandIn(run / "agent/gate.sock", lambda connection: None, first)
    assert ask().returncode == 1
    agent.close()


@pytest.mark.parametrize("says", [b"", HEAD, HEAD + b"WA", HEAD + b"WAIT\n", HEAD + b"WAIT\nPASS 1"])
def test_an_agent_that_hangs_is_not_waited_for(says: bytes, run: Path, ask: Ask) -> None:
    over: list[socket.socket] = []
    agent = StandIn(run / "agent/gate.sock", lambda connection: over.append(connection.dup()), says)  # stays open
    began = time.monotonic()
    done = ask(1, 2)
    agent.close()
    for each in over:
        each.close()
    assert done.returncode == 1 and "gives no answer" in done.stdout
    assert time.monotonic() - began < 60


def test_an_agent_that_works_on_its_answer_is_waited_for(run: Path, ask: Ask) -> None:
    def answers(connection: socket.socket) -> None:
        time.sleep(2)
        connection.sendall(b"PASS 0\n")

    agent = StandIn(run / "agent/gate.sock", answers)
    assert ask(1).stdout == "PASS 0\n" or ask(60).stdout == "PASS 0\n", "a busy machine may not begin within a second"
    agent.close()


def test_an_agent_that_does_not_even_accept_is_not_waited_for(run: Path, ask: Ask) -> None:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as listener:
        listener.bind(str(run / "agent/gate.sock"))
        listener.listen(0)
        done = [ask(1, 1) for _ in range(3)]  # the queue is full for the last
    assert [each.returncode for each in done] == [1] * 3
    assert ask().returncode == 1, "nobody listens any more"


PLACES = {
    "folder": "others can write into its folder",
    "above": "others can put a folder there",
    "link": "others can put a folder there",
    "folder_link": "others can write into its folder",
    "socket_link": "is no socket",
    "file": "is no socket",
    "nothing": "is not there",
    "no_folder": "is not there",
    "relative": "is no path of a socket",
}


@pytest.mark.parametrize("case", PLACES)
def test_a_place_where_others_could_put_a_socket_is_not_asked(case: str, run: Path, ask: Ask, tmp_path: Path) -> None:
    path, folder = run / "agent/gate.sock", str(run)
    with agent_that_says(path, b"PASS 1\n") as agent:
        assert ask().returncode == 0
        if case == "folder":
            (run / "agent").chmod(0o775)
        elif case == "above":
            run.chmod(0o1777)
        elif case == "link":
            (tmp_path / "other").symlink_to(run)
            folder = f"{tmp_path}/other"
        elif case == "folder_link":
            (run / "agent").rename(run / "other")
            (run / "agent").symlink_to(run / "other")
        elif case == "socket_link":
            path.rename(run / "other")
            path.symlink_to(run / "other")
        elif case in ("file", "nothing"):
            path.unlink()
            if case == "file":
                path.touch()
        elif case == "no_folder":
            (run / "agent").rename(run / "other")
        elif case == "relative":
            folder = "run"
        done = ask(folder=folder)
        assert done.returncode == 1 and PLACES[case] in done.stdout
        assert len(agent.asked) == 1


def test_a_folder_of_all_users_above_is_well_where_it_is_sticky(run: Path, ask: Ask, tmp_path: Path) -> None:
    with agent_that_says(run / "agent/gate.sock", b"PASS 1\n"):
        tmp_path.chmod(0o1777)
        assert ask().returncode == 0
        tmp_path.chmod(0o777)
        assert ask().returncode == 1


@needs_root
@pytest.mark.parametrize(
    ("folder", "owner", "status"),
    [
        (0, SOMEBODY, 1),
        (SOMEBODY, SOMEBODY, 0),  # the agent's own, to whom root gave the folder
        (SOMEBODY, SOMEBODY + 1, 1),
        (SOMEBODY, 0, 0),
    ],
)
def test_another_users_agent_is_not_believed(folder: int, owner: int, status: int, run: Path, ask: Ask) -> None:
    """`folder`, `owner`: whose the folder and the socket are."""
    path = run / "agent/gate.sock"
    with agent_that_says(path, b"PASS 1\n"):
        os.chown(run / "agent", folder, folder)
        os.chown(path, owner, owner)
        assert ask().returncode == status


@needs_root
@pytest.mark.parametrize("above", [".", ".."])
def test_a_folder_above_that_is_another_users_is_not_believed(above: str, run: Path, ask: Ask) -> None:
    with agent_that_says(run / "agent/gate.sock", b"PASS 1\n"):
        os.chown(run / above, SOMEBODY, SOMEBODY)
        assert ask().returncode == 1
