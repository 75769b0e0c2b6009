"""Fixtures for real ranks that write real rank files, each in a process of its own, and for a real agent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from http.client import HTTPMessage
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.daemons import Daemon

SCRIPT = Path(__file__).with_name("write_rank.py")
LANES = [["all_reduce", "dp", "dp:0-3"], ["all_gather", "dp", "dp:0-3"], ["send", "pp", "pp:0-4/4"]]
IDENTITY = {"job_id": "j1", "rank": 0, "local_rank": 0, "world_size": 8, "node": "elsewhere", "gpu": None, "attempt": 0}


PATIENT_SECONDS = 600.0
PATIENT = f"""
import sys
from laggard.kit import http_message as message
message.HEAD_SECONDS = message.RESPONSE_SECONDS = {PATIENT_SECONDS}
from laggard.cli import main
sys.exit(main())
"""


class RankProcess:
    """A process that writes a rank file (write_rank.py). `path` is the file's."""

    def __init__(
        self, directory: Path, lanes: list[list[str]], user: int, identity: dict[str, Any], started_by: Iterable[str]
    ) -> None:
        command = [
            *started_by,
            sys.executable,
            str(SCRIPT),
            str(directory),
            str(user),
            json.dumps(identity),
            json.dumps(lanes),
        ]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        assert self.process.stdout is not None and self.process.stderr is not None
        path = self.process.stdout.readline().strip()
        assert path, self.process.stderr.read()
        self.path = Path(path)

    def do(self, *commands: str) -> None:
        """Sends each command and waits until it is done."""
        for command in commands:
            self.send(command)
            assert self.process.stdout is not None and self.process.stdout.readline() == "done\n"

    def send(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def finish(self) -> None:
        self.send("finish")
        assert self.process.wait(300) == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(300)

    def close(self) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream:
                stream.close()


def let_others_enter(folder: Path) -> None:
    """Other users can enter `folder`: pytest makes it, and what it stands in, for the user of the tests alone."""
    for parent in (folder, *folder.parents):
        if parent.stat().st_uid == os.geteuid() and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)


@pytest.fixture
def open_dir(tmp_path: Path) -> Path:
    """One that other users can enter, so that a file's mode counts."""
    let_others_enter(tmp_path)
    tmp_path.chmod(0o755)
    return tmp_path


def put(path: Path, content: str | bytes, mode: int = 0o600) -> Path:
    """A file as a whole, by a rename, as configuration management does."""
    fresh = path.with_name("new")
    fresh.touch(mode)
    fresh.write_bytes(content.encode() if isinstance(content, str) else content)
    fresh.chmod(mode)
    os.replace(fresh, path)
    return path


@pytest.fixture
def rank_dir(tmp_path: Path) -> Path:
    """Writable for every user, as the real one is, and under folders that other users can enter."""
    directory = tmp_path / "ranks"
    directory.mkdir()
    directory.chmod(0o1777)
    let_others_enter(tmp_path)
    return directory


@pytest.fixture
def start_rank(rank_dir: Path) -> Iterator[Callable[..., RankProcess]]:
    """Starts a rank; keywords replace fields of its identity."""
    started: list[RankProcess] = []

    def start(
        lanes: list[list[str]] | None = None,
        user: int = 0,
        directory: Path | None = None,
        started_by: Iterable[str] = (),
        **identity: object,
    ) -> RankProcess:
        lanes = LANES if lanes is None else lanes
        rank = RankProcess(directory or rank_dir, lanes, user, {**IDENTITY, **identity}, started_by)
        started.append(rank)
        return rank

    yield start
    for rank in started:
        rank.close()


class Reply(NamedTuple):
    status: int
    headers: HTTPMessage
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


class AgentProcess(Daemon):
    def __init__(self, rank_dir: Path, log: Path, node: str, flags: Sequence[str], patient: bool = False) -> None:
        words = ("agent", "--node", node, "--rank-dir", str(rank_dir), *flags)
        super().__init__(log, words, {}, (sys.executable, *(("-c", PATIENT) if patient else ("-m", "laggard"))))

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    def request(self, path: str, method: str = "GET", **headers: str) -> Reply:
        request = urllib.request.Request(self.url + path, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENT_SECONDS / 2) as answer:
                return Reply(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, error.headers, error.read())


@pytest.fixture
def start_agent(rank_dir: Path, tmp_path: Path) -> Iterator[Callable[..., AgentProcess]]:
    """Starts `laggard agent` with these flags on a free port, and waits until it listens. `patient`: it waits for slow
    clients longer than any test does, so that who is held up by them is never answered."""
    started: list[AgentProcess] = []

    def start(*flags: str, node: str = "n0", patient: bool = False) -> AgentProcess:
        started.append(AgentProcess(rank_dir, tmp_path / f"agent-{len(started)}.log", node, flags, patient))
        return started[-1]

    yield start
    for agent in started:
        agent.stop()


@pytest.fixture(scope="module")
def idle_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    """One agent without ranks, for all tests of a file that only ask it something."""
    folder = tmp_path_factory.mktemp("idle-agent")
    (folder / "ranks").mkdir()
    agent = AgentProcess(folder / "ranks", folder / "agent.log", "n0", ())
    yield agent
    agent.stop()
