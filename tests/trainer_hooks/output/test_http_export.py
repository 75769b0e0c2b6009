"""Metrics that the training process serves: the same as the agent's, and never at the training's cost."""

import contextlib
import os
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse
from support import sessions
from support.ports import free_port
from support.sessions import SESSION

from laggard.agent.prober.loop import ProbeRound
from laggard.agent.ranks.reader import RankFiles
from laggard.agent.web.routes import agent_metrics
from laggard.kit.errors import UsageError
from laggard.kit.http_message import NO_PAGE
from laggard.model import Report, Verdict
from laggard.trainer_hooks.output.http_export import rank_address

pytestmark = pytest.mark.apart

TRAINER = f"""
import logging
logging.basicConfig(format="%(message)s", level=logging.INFO)
{SESSION}
for _ in range(5): step()
print("ready", flush=True)
"""
WAIT = "sys.stdin.readline()\n"


class Trainer:
    """A training process that has done five steps and waits for a line on its standard input."""

    def __init__(self, folder: Path, body: str, **extra: str) -> None:
        own = {"LAGGARD_EXPORT": "127.0.0.1:0", "LAGGARD_JOB_ID": 'a"b\\c', **extra}
        self.process = sessions.start(TRAINER + body, sessions.environ_of(folder, 1, **own))

    def url(self) -> str:
        assert self.process.stderr
        found = re.search(r"metrics on (http\S+)", self.process.stderr.readline())
        assert found
        return found[1]

    def end(self) -> tuple[int, str]:
        _, errors = self.process.communicate("go\n", timeout=300)
        return self.process.returncode, errors


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Callable[..., Trainer]]:
    with contextlib.ExitStack() as stack:

        def start(body: str = WAIT, **extra: str) -> Trainer:
            trainer = Trainer(tmp_path, body, **extra)
            stack.callback(trainer.process.kill)
            return trainer

        yield start


def samples(text: str) -> dict[tuple[Any, ...], float]:
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in parse(text)
        for sample in family.samples
        if family.name.startswith("laggard_rank_") and family.name != "laggard_rank_files_ignored"
    }


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=300) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert set(answer.headers.items()) >= set(NO_PAGE)
        text: str = answer.read().decode()
        return text


def error_status(request: str | urllib.request.Request) -> int:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=300)
    with refused.value:
        assert set(refused.value.headers.items()) >= set(NO_PAGE)
        return refused.value.code


@pytest.mark.slow
def test_the_metrics_are_the_same_as_the_agents(train: Callable[..., Trainer], tmp_path: Path) -> None:
    began = time.time()
    trainer = train(LAGGARD_NODE="n0")
    own = samples(fetch(trainer.url()))
    nothing = ProbeRound(Report(Verdict.OK, "n0", 0.1, (), (), {}), 0.0, True)
    theirs = samples(agent_metrics(RankFiles(str(tmp_path), "n0").read(), nothing, "")[0].decode())
    assert own.keys() == theirs.keys()
    moments = ("laggard_rank_last_progress_timestamp_seconds", "laggard_rank_last_beat_timestamp_seconds")
    for key, value in own.items():
        if key[0] in moments:
            assert began - 0.5 <= min(value, theirs[key]) and max(value, theirs[key]) <= time.time() + 0.5, key
        else:
            assert theirs[key] == pytest.approx(value, abs=1e-9), key
    assert own["laggard_rank_steps_total", ("job_id", 'a"b\\c'), ("rank", "1"), ("user", str(os.getuid()))] == 5.0
    assert trainer.end()[0] == 0


@pytest.mark.slow
def test_a_port_in_use_is_one_line_and_the_training_goes_on(train: Callable[..., Trainer]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, errors = train(LAGGARD_EXPORT=f"127.0.0.1:{port - 1}", LOCAL_RANK="1").end()
    assert status == 0
    assert errors.splitlines() == [
        f"laggard: no metrics are served from rank 1: 127.0.0.1:{port} is in use; stop what listens there "
        "or choose another with LAGGARD_EXPORT"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("address", ["9500", "host:port", ":70000", "127.0.0.1:", ":-1", "no such host:1"])
def test_an_impossible_address_is_one_line(train: Callable[..., Trainer], address: str) -> None:
    status, errors = train(LAGGARD_EXPORT=address).end()
    assert status == 0 and len(errors.splitlines()) == 1, errors
    assert errors.startswith("laggard: no metrics are served from rank 1: cannot ")


def test_each_local_rank_has_a_port_of_its_own() -> None:
    assert [rank_address(":9500", rank) for rank in (0, 7)] == [":9500", ":9507"]
    assert rank_address("[::1]:9500", 1) == "[::1]:9501" and rank_address("n0:0", 3) == "n0:0"
    with pytest.raises(UsageError, match="leaves no port for local rank 7"):
        rank_address(":65530", 7)


@pytest.mark.slow
def test_slow_clients_and_junk_hold_up_nobody(train: Callable[..., Trainer]) -> None:
    trainer = train(
        "import laggard.kit.http_message as it; it.HEAD_SECONDS = 600.0\n" + WAIT
    )  # those who wait do so long
    url = trainer.url()
    host, port = url.removeprefix("http://").removesuffix("/metrics").split(":")
    with contextlib.ExitStack() as stack:
        for number in range(30):
            client = stack.enter_context(socket.create_connection((host, int(port))))
            client.sendall(b"GET /metrics HTTP/1.1\r\n" if number % 2 else os.urandom(64))
        assert "laggard_rank_steps_total" in fetch(url)
        threads = len(os.listdir(f"/proc/{trainer.process.pid}/task"))
        assert threads < 16, "there is a limit on the threads for clients"
        for path in ("/", "/metrics/../.."):
            assert error_status(url.removesuffix("/metrics") + path) == 404
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(url, data=b"x"), timeout=300)
        with refused.value as answer:
            assert (answer.code, answer.headers["Allow"]) == (405, "GET, HEAD")
        assert trainer.end()[0] == 0  # with clients still connected


@pytest.mark.slow
def test_a_child_that_outlives_the_rank_does_not_keep_the_port(train: Callable[..., Trainer]) -> None:
    body = """
child = os.fork()
if child == 0:
    import time
    for fd in (0, 1, 2): os.close(fd)
    time.sleep(60)
    os._exit(0)
sys.stdin.readline()
"""
    port = free_port()
    trainer = train(body, LAGGARD_EXPORT=f"127.0.0.1:{port}", LOCAL_RANK="0")
    fetch(trainer.url())
    assert trainer.end()[0] == 0
    socket.create_server(("127.0.0.1", port)).close()
