"""The agent's socket for prologs: answered at once, held while the agent looks, and never stopped by one of them."""

import contextlib
import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.waiting import wait_for

from laggard.agent.gate.server import MAX_CONNECTIONS, Answer, GateServer, Question, open_listener
from laggard.agent.prober.loop import ROUND, VARIANTS, ProbeLoop
from laggard.model import ProbeResult, Report, Verdict

SECONDS = 60.0
PATH = f"/gate/1/prolog/{'a' * 32}/0f9a7c52-3f0e-4d5c-9c55-0a4b5d1f7e10/0/-/60000"
HEAD = "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nWAIT\n"


class Agent:
    """A loop whose probes wait until they may go on, and its server. `verdict`: the answer from the next round on."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "gate.sock")
        self.go_on, self.rounds, self.variants = threading.Event(), 0, 0
        self.verdict = Answer(False, reason="old", cure=ROUND)
        self._now = self.verdict
        self.loop = ProbeLoop(self._round, "n1", 1000.0, self._variants)
        listener = open_listener(self.path)
        assert listener is not None
        self.server = GateServer(listener, self.loop, self._judge)
        self.server.start()

    def _judge(self, question: Question) -> Answer:
        return self._now

    def _round(self) -> Report:
        self.rounds += 1
        assert self.go_on.wait(SECONDS)
        self._now = self.verdict
        return Report(Verdict.OK, "n1", 0.1, (ProbeResult("disks", Verdict.OK, "", 0.1),), (), {})

    def _variants(self) -> Report:
        self.variants += 1
        self._now = self.verdict
        return Report(Verdict.OK, "n1", 0.1, (), (), {})

    def ask(self, path: str = PATH) -> socket.socket:
        return self.say(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: x\r\n\r\n")

    def say(self, text: str) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(SECONDS)
            connection.connect(self.path)
            connection.sendall(text.encode())
        except OSError:
            connection.close()
            raise
        return connection


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    tmp_path.chmod(0o755)
    started = Agent(tmp_path)
    yield started
    started.go_on.set()
    started.loop.stop()
    started.server.stop()


def said(connection: socket.socket) -> str:
    """What is said after the head."""
    with connection, connection.makefile("r", newline="") as lines:
        return lines.read().removeprefix(HEAD)


def test_who_can_be_answered_is_answered_at_once(agent: Agent) -> None:
    agent._now = Answer(True, 12)
    assert said(agent.ask()) == "PASS 12\n"
    agent._now = Answer(False, reason="critical")
    assert said(agent.ask()) == "CHECK critical\n"
    assert said(agent.ask("/metrics")) == "CHECK question\n"
    assert stat.S_IMODE(os.stat(agent.path).st_mode) == 0o600


def test_two_hundred_wait_for_one_round(agent: Agent) -> None:
    """None of them pays for it alone; who comes during a round that cannot settle it waits for one more at most."""
    waiting = [agent.ask() for _ in range(200)]
    for each in waiting:
        assert each.recv(len(HEAD)).decode() == HEAD
    agent.loop.start()
    agent.verdict = Answer(True, 1)
    agent.go_on.set()
    assert {said(each) for each in waiting} == {"PASS 1\n"}
    assert agent.rounds <= 2


def test_what_a_new_round_does_not_settle_the_gate_looks_at(agent: Agent) -> None:
    agent.go_on.set()
    agent.loop.start()
    assert said(agent.ask()) == "CHECK old\n"
    agent._now = agent.verdict = Answer(False, reason="stricter", cure=VARIANTS)
    assert said(agent.ask()) == "CHECK stricter\n"
    assert agent.variants >= 1
    agent.verdict = Answer(True, 3)
    assert said(agent.ask()) == "PASS 3\n"


def test_who_would_not_wait_is_told_at_once_and_who_waits_in_vain_at_the_end(agent: Agent) -> None:
    assert said(agent.ask(PATH.replace("/60000", "/0"))) == "CHECK old\n"
    assert said(agent.ask(PATH.replace("/60000", "/300"))) == "CHECK old\n"


def test_who_says_nothing_too_much_or_half_a_line_keeps_nobody_waiting(agent: Agent) -> None:
    agent._now = Answer(True, 1)
    with contextlib.ExitStack() as stack:
        for part in ("", f"GET {PATH}", "GET /", "\r\n"):
            stack.enter_context(agent.say(part))
        with contextlib.suppress(ConnectionError):
            stack.enter_context(agent.say("x" * 100_000)).recv(1)
        assert said(agent.ask()) == "PASS 1\n"
    gone = [agent.ask() for _ in range(20)]
    for each in gone:
        each.close()
    assert said(agent.ask()) == "PASS 1\n"


def test_more_than_it_holds_are_sent_away_and_look_themselves(agent: Agent) -> None:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(agent.ask()) for _ in range(MAX_CONNECTIONS)]
        for each in held:
            assert each.recv(len(HEAD)).decode() == HEAD
        with pytest.raises(ConnectionError):
            assert said(agent.ask()) == ""
            raise ConnectionError  # it was closed before its question was sent, or behind it


def test_a_socket_that_an_agent_left_is_replaced_and_one_that_answers_is_not(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    path = str(tmp_path / "gate.sock")
    first = open_listener(path)
    assert first is not None
    assert open_listener(path) is None, "another agent listens there"
    first.close()
    second = open_listener(path)
    assert second is not None
    second.close()


def test_it_listens_nowhere_where_others_can_put_a_socket(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tmp_path.chmod(0o777)
    assert open_listener(str(tmp_path / "gate.sock")) is None
    assert "others may write there" in caplog.text
    tmp_path.chmod(0o755)
    (tmp_path / "gate.sock").write_text("mine")
    assert open_listener(str(tmp_path / "gate.sock")) is None
    assert (tmp_path / "gate.sock").read_text() == "mine"
    assert open_listener(str(tmp_path / "nowhere/gate.sock")) is None


def test_a_round_that_is_wanted_does_not_wait_for_its_time(agent: Agent) -> None:
    agent.go_on.set()
    agent.loop.start()
    wait_for(lambda: agent.loop.ready)
    before = agent.loop.latest.began
    wait_for(lambda: agent.loop.want(ROUND) or agent.loop.latest.began != before)
