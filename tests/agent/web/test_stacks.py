"""The agent's routes for stacks: who may ask, how often, and that ranks of a real job answer."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.agents import RankProcess
from support.readers import NOBODY, as_root
from support.stack_documents import sampled

from laggard.agent.settings import AgentSettings
from laggard.agent.web.stacks import SEEN_SECONDS, Turns
from laggard.kit.config import load
from laggard.stacks.ask import MIN_SECONDS_BETWEEN, read_ask
from laggard.stacks.sampled import encode

Start = Callable[..., Any]
TOKEN = "correct horse battery staple"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def with_token(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    (tmp_path / "token").chmod(0o600)
    (tmp_path / "agent.yaml").write_text(f"stacks_token_file: {tmp_path / 'token'}\n")
    return "--config", str(tmp_path / "agent.yaml")


def test_a_job_is_asked_at_most_once_in_ten_seconds_and_no_ask_hides_another() -> None:
    turns = Turns()
    assert turns.wait_seconds((0, "a"), 100.0) == 0
    assert turns.wait_seconds((0, "a"), 101.0) == MIN_SECONDS_BETWEEN - 1
    assert turns.wait_seconds((0, "b"), 101.0) == SEEN_SECONDS - 1
    assert turns.wait_seconds((0, "b"), 103.0) == 0
    assert turns.wait_seconds((0, "a"), 110.0) == 0
    granted = sum(turns.wait_seconds((7, str(number)), 200.0 + number / 100) == 0 for number in range(1000))
    assert granted == 4  # in ten seconds, one each three


@pytest.mark.slow
def test_without_a_token_nobody_reads_or_asks(start_agent: Start, start_rank: Start) -> None:
    start_rank(rank=0)
    agent = start_agent()
    for path, method in (("/api/v1/stacks", "GET"), ("/api/v1/stacks/ask", "POST")):
        reply = agent.request(f"{path}?owner={os.geteuid()}&job=j1", method, **BEARER)
        assert reply.status == 403 and "stacks_token_file" in reply.json()["error"]
        assert reply.text.count("\n") == 0


@pytest.mark.slow
def test_switched_off_it_is_off(start_agent: Start, tmp_path: Path, with_token: tuple[str, ...]) -> None:
    with (tmp_path / "agent.yaml").open("a") as file:
        file.write("stacks: false\n")
    reply = start_agent(*with_token).request("/api/v1/stacks?owner=0&job=j1", **BEARER)
    assert reply.status == 403 and "`stacks: false`" in reply.json()["error"]


def test_a_token_that_every_user_can_read_is_refused(tmp_path: Path, with_token: tuple[str, ...]) -> None:
    from laggard.agent.web.stacks import read_stacks_tokens
    from laggard.kit.errors import UsageError

    settings = load(with_token[1], AgentSettings)
    assert read_stacks_tokens(settings.stacks, settings.stacks_token_file).accepted() == (TOKEN,)
    (tmp_path / "token").chmod(0o644)
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & 0o001 and folder.stat().st_uid == os.geteuid():
            folder.chmod(folder.stat().st_mode | 0o011)
    with pytest.raises(UsageError, match="is for every user of this machine to read"):
        read_stacks_tokens(True, settings.stacks_token_file)


@pytest.mark.slow
def test_who_may_ask_and_what_is_asked(
    start_agent: Start, start_rank: Start, rank_dir: Path, with_token: tuple[str, ...]
) -> None:
    rank: RankProcess = start_rank(rank=3)
    agent = start_agent(*with_token)
    me = os.geteuid()
    about = f"?owner={me}&job=j1"
    for wrong in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}, {"Authorization": f"Basic {TOKEN}"}):
        for path, method in (("/api/v1/stacks", "GET"), ("/api/v1/stacks/ask", "POST")):
            reply = agent.request(path + about, method, **wrong)
            assert reply.status == 401 and reply.headers["WWW-Authenticate"] == "Bearer"
    assert not (rank_dir / ".ask").exists()
    assert agent.request(f"/api/v1/stacks/ask{about}", "GET", **BEARER).status == 405
    assert agent.request(f"/api/v1/stacks{about}", "POST", **BEARER).status == 405
    assert agent.request("/api/v1/stacks/ask?owner=1&job=nothing", "POST", **BEARER).status == 404
    assert agent.request(f"/api/v1/stacks/ask{about}&seconds=1e9", "POST", **BEARER).status == 400
    reply = agent.request(f"/api/v1/stacks/ask{about}&ranks=3,9&samples=7&seconds=1.5", "POST", **BEARER)
    asked = reply.json()
    assert reply.status == 200 and asked["ranks"] == [3] and [it["rank"] for it in asked["missing"]] == [9]
    written = read_ask(str(rank_dir / ".ask"), frozenset({0, me}))
    assert written is not None and [written.ident] == asked["idents"]
    assert (written.owner, written.job_id, written.ranks, written.samples, written.seconds) == (me, "j1", {3}, 7, 1.5)
    again = agent.request(f"/api/v1/stacks/ask{about}", "POST", **BEARER)
    assert again.status == 429 and 0 < int(again.headers["Retry-After"]) <= 10
    pid = int(rank.path.name.partition("-")[0])
    path = rank.path.with_suffix(".stacks")
    path.write_bytes(encode(sampled(3, 0.5, pid=pid, ask=written.ident)))
    found = agent.request(f"/api/v1/stacks{about}", **BEARER).json()
    assert [(each["rank"], each["ask"]) for each in found["ranks"]] == [(3, written.ident)]
    assert found["ranks"][0]["frames"][0][0] == "tokenize"
    unharmed = agent.request("/api/v1/stacks?owner=0&job=../../etc", **BEARER).json()
    assert unharmed["ranks"] == [] and unharmed["missing"] == []


@pytest.mark.slow
def test_what_nobody_asks_for_is_in_no_scrape(
    start_agent: Start, start_rank: Start, with_token: tuple[str, ...]
) -> None:
    rank: RankProcess = start_rank(rank=0)
    pid = int(rank.path.name.partition("-")[0])
    agent = start_agent(*with_token)
    before = {line.partition("{")[0].partition(" ")[0] for line in agent.request("/metrics").text.splitlines()}
    rank.path.with_suffix(".stacks").write_bytes(encode(sampled(0, 0.5, pid=pid)))
    for path in ("/metrics", "/api/v1/ranks", "/"):
        assert "tokenize" not in agent.request(path).text
    after = {line.partition("{")[0].partition(" ")[0] for line in agent.request("/metrics").text.splitlines()}
    assert before == after


@pytest.mark.slow
@as_root
def test_an_agent_that_is_not_root_makes_no_folder_that_nobody_believes(rank_dir: Path) -> None:
    """As under systemd without the line of tmpfiles.d: a folder of its own no rank would believe."""
    from laggard.stacks.ask import new_ask, trusted_users, write_ask

    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            try:
                write_ask(str(rank_dir / ".ask"), new_ask(0, "j1", None), trusted_users(str(rank_dir)))
            except FileNotFoundError:
                status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0 and not (rank_dir / ".ask").exists()


ASKED_AGAIN = 1000


@pytest.mark.slow
@as_root
def test_an_unprivileged_user_cannot_have_anothers_rank_sample(rank_dir: Path, tmp_path: Path) -> None:
    """Asked a thousand times, by a file in the place of the node's folder: nothing is taken. Asked so by who may, a
    rank answers once in ten seconds."""
    from laggard.stacks.ask import ask_folders, new_ask, trusted_users, write_ask
    from laggard.trainer_hooks.stacks.watch import About, StackWatch

    forged = rank_dir / ".ask"
    forged.mkdir()
    os.chown(forged, NOBODY, NOBODY)
    own = rank_dir / "0"
    own.mkdir()
    folders = ask_folders(str(rank_dir), str(own))
    path = own / "1-a.stacks"
    about = About("j1", 0, "n0", str(path), folders, trusted_users(str(rank_dir), 0))
    watch = StackWatch(about, lambda: 0, lambda: memoryview(bytearray(4096)).cast("q"), lambda: ())
    for _ in range(ASKED_AGAIN):
        write_ask(str(forged), new_ask(0, "j1", None, 1, 0.1), frozenset({0, NOBODY}))
        os.chown(forged, NOBODY, NOBODY)
        watch.beat()
    time.sleep(0.5)
    assert not path.exists()
    answers = set()
    deadline = time.monotonic() + 4
    while time.monotonic() < deadline:
        write_ask(str(own / ".ask"), new_ask(0, "j1", None, 1, 0.1), frozenset({0}))
        watch.beat()
        if path.exists():
            answers.add(json.loads(path.read_bytes())["ask"])
    assert len(answers) == 1
    watch.close()
