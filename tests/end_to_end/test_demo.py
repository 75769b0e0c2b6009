"""The demo, with all its real parts from the hooks in DeepSpeed to the verdict."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import memory
from support.paths import REPOSITORY
from support.transcript import of_other_form

from laggard.demo.job import Injected
from laggard.demo.main import in_words, judged


def demo(*words: str, **how: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "laggard", "demo", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **how)


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """A demo removes the network interfaces, namespaces and directories that it created."""
    before = _created_by_demos()
    yield
    assert _created_by_demos() - before == set()


def _created_by_demos() -> set[str]:
    places = [place for place in ("/sys/class/net", "/dev/shm", "/run/netns") if os.path.isdir(place)]
    names = {name for place in places for name in os.listdir(place) if name.startswith("laggard")}
    others = (memory.PREFIX, "laggard-ring-", "laggard-case-")  # of other test runs, rings and benchmarks beside this
    return {name for name in names - {"laggard"} if not name.startswith(others)}  # the rank directory is no demo's


FORWARD_OF_1 = {"ranks": [1], "phase": "forward"}


@pytest.mark.parametrize(
    ("verdict", "culprits", "status", "words"),
    [
        ("slow", [FORWARD_OF_1], 0, "The verdict is right."),
        ("slow", [{"ranks": [0], "phase": "forward"}], 1, "The verdict is WRONG."),
        ("slow", [FORWARD_OF_1, {"ranks": [0], "phase": "input"}], 1, "The verdict is WRONG."),
        ("ok", [], 1, "The verdict is WRONG."),
        ("unknown", [], 2, "laggard could not tell, as happens on a busy machine (load "),
    ],
)
def test_a_verdict_that_is_unknown_is_not_called_wrong(
    verdict: str, culprits: list[dict[str, Any]], status: int, words: str
) -> None:
    assert judged({"verdict": verdict, "culprits": culprits}, Injected(1, "forward")) == status
    assert in_words(status).startswith(words)


@pytest.mark.slow
def test_the_slowed_rank_is_named_live_and_from_the_recording(tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    slow = ("--slow-rank", "3", "--slow-phase", "backward", "--slow-by", "0.3")  # more than a busy machine costs a rank
    live = demo(*slow, "--record", str(recording), "--format", "json")
    assert live.returncode == 0, live.stderr + live.stdout
    location = json.loads(live.stdout)
    assert location.pop("injected") == {"rank": 3, "phase": "backward"}
    assert [(each["ranks"], each["node"], each["phase"]) for each in location["culprits"]] == [([3], "n1", "backward")]

    command = [sys.executable, "-m", "laggard", "locate", "--trace", str(recording), "--format", "json"]
    traced = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=300).stdout)
    saved = [_saved_seconds(each) for each in (location, traced)]
    assert all(0.18 < each < 0.42 for each in saved), f"0.3 s were injected, live and recording say {saved}"
    assert _common_facts(traced) == _common_facts(location)
    (culprit,) = traced["culprits"][:1]
    assert culprit["stack"]["rank"] == 3 and culprit["stack"]["place"] in culprit["advice"]


def _saved_seconds(location: dict[str, Any]) -> float:
    """What fixing the culprit would save of each step."""
    window = location["window"]
    steps = window["last_step"] - window["first_step"] + 1
    return float(location["culprits"][0]["recoverable_ratio"] * window["seconds"] / steps)


def _common_facts(location: dict[str, Any]) -> dict[str, Any]:
    """What a job's location and that of its recording have in common. Only the live collector knows that the job has
    ended, and whose it is; only a recording can be replayed to tell what fixing the culprit would save, and has stacks
    that nobody asked for, whose line is the first advice. Behind the one that was slowed there may be another, in what
    one of the two has seen: other tests take CPU time from ranks."""
    culprits = [
        {**culprit, "recoverable_ratio": None, "stack": None, "advice": None} for culprit in location["culprits"][:1]
    ]
    return {**location, "culprits": culprits, "slowdown_ratio": None, "notes": None, "owner": None}


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a demo that the test goes on beside. At the end each gets the time to remove what it has created."""
    with contextlib.ExitStack() as ends:

        def start(*command: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            ends.callback(_end, process)
            return process

        yield start


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.communicate(timeout=300)
    finally:
        process.kill()
        process.wait()


def _url_behind(words: str, process: subprocess.Popen[str]) -> str:
    """Waits for a line of the demo's standard error that has these words. Returns the word that follows them."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if words in line:
            return line.partition(words)[2].split()[0]
    raise AssertionError(f"the demo ended with {process.wait()} and never said {words!r}:\n{''.join(lines)}")


@pytest.mark.slow
def test_without_the_right_to_create_namespaces_it_keeps_its_page_until_interrupted(
    started: Callable[..., subprocess.Popen[str]],
) -> None:
    """The nodes are loopback addresses then. SIGINT ends it even where it ignores that at its start, as what a script's
    shell starts in the background does."""
    without_rights = ["setpriv", "--bounding-set=-net_admin,-sys_admin"] if os.geteuid() == 0 else []
    slow = ("--ranks", "2", "--slow-rank", "1", "--slow-phase", "forward", "--slow-by", "0.3")
    command = [*without_rights, sys.executable, "-m", "laggard", "demo", "--keep", *slow]
    process = started("sh", "-c", 'trap "" INT; exec "$@"', "sh", *command)
    url = _url_behind("The page stays at", process)
    for _ in range(2):
        page, location = (urllib.request.urlopen(url + path, timeout=300).read() for path in ("", "api/v1/location"))
        assert b"laggard</title>" in page
        assert json.loads(location)["job_id"] == "demo"
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert output.startswith("Rank 1 on n1 is slow in forward")
    (shown,) = re.findall(r"```text\n(.*?)```", (REPOSITORY / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    other = of_other_form(shown.replace("ank 2", "ank 1").splitlines(), output)
    assert not other, f"README.md shows lines of a form that the demo does not print: {other}\nprinted: {output}"


@pytest.mark.slow
def test_it_can_be_ended_while_it_runs(started: Callable[..., subprocess.Popen[str]]) -> None:
    process = started(sys.executable, "-m", "laggard", "demo")
    _url_behind("the page is", process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=300) == 130
