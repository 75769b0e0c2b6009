"""Real ranks that write real files, each in a process of its own, and a real agent."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPMessage
from pathlib import Path
from typing import Any, NamedTuple

import pytest

SCRIPT = Path(__file__).with_name("write_rank.py")
LANES = [["all_reduce", "dp", "dp:0-3"], ["all_gather", "dp", "dp:0-3"], ["send", "pp", "pp:0-4/4"]]
IDENTITY = {"job_id": "j1", "rank": 0, "local_rank": 0, "world_size": 8, "node": "elsewhere", "gpu": None, "attempt": 0}


class Rank:
    """The process, and the path of its file."""

    def __init__(self, directory: Path, lanes: list[list[str]], user: int, identity: dict[str, Any]) -> None:
        command = [sys.executable, str(SCRIPT), str(directory), str(user), json.dumps(identity), json.dumps(lanes)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        assert self.process.stdout is not None and self.process.stderr is not None
        path = self.process.stdout.readline().strip()
        assert path, self.process.stderr.read()
        self.path = Path(path)

    def do(self, *words: str) -> None:
        """Each word is done when this returns."""
        for word in words:
            self.tell(word)
            assert self.process.stdout is not None and self.process.stdout.readline() == "done\n"

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def finish(self) -> None:
        self.tell("finish")
        assert self.process.wait(10) == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def close(self) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream:
                stream.close()


@pytest.fixture
def rank_dir(tmp_path: Path) -> Path:
    """Anybody's, as the real one; and where other users can reach it."""
    directory = tmp_path / "ranks"
    directory.mkdir()
    directory.chmod(0o1777)
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(0o711)
    return directory


@pytest.fixture
def start_rank(rank_dir: Path) -> Iterator[Callable[..., Rank]]:
    """Starts a rank; keywords replace fields of its identity."""
    started: list[Rank] = []

    def start(lanes: list[list[str]] | None = None, user: int = 0, **identity: object) -> Rank:
        rank = Rank(rank_dir, LANES if lanes is None else lanes, user, {**IDENTITY, **identity})
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


@dataclasses.dataclass
class Agent:
    process: subprocess.Popen[str]
    log: Path
    url: str

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    def ask(self, path: str, method: str = "GET", **headers: str) -> Reply:
        request = urllib.request.Request(self.url + path, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return Reply(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, error.headers, error.read())


@pytest.fixture
def start_agent(rank_dir: Path, tmp_path: Path) -> Iterator[Callable[..., Agent]]:
    """Starts `laggard agent` with these words, on a free port, and waits until it says where it listens."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: str, node: str = "n0") -> Agent:
        log = tmp_path / f"agent-{len(started)}.log"
        command = [sys.executable, "-m", "laggard", "agent", "--web.listen-address", "127.0.0.1:0", "--node", node]
        with log.open("w") as stderr:
            process = subprocess.Popen([*command, "--rank-dir", str(rank_dir), *words], stderr=stderr, text=True)
        started.append(process)
        return Agent(process, log, _url(process, log))

    yield start
    for process in started:
        process.terminate()
        process.wait(10)


def _url(process: subprocess.Popen[str], log: Path) -> str:
    for _ in range(400):
        found = re.search(r"listening on (http\S+)", log.read_text())
        if found:
            return found[1]
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        break
    raise AssertionError(f"the agent did not start: {log.read_text()}")
