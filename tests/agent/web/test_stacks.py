"""The agent's routes for stacks: who may ask, how often, and that ranks of a real job answer."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.readers import NOBODY, as_root

from laggard.agent.settings import AgentSettings
from laggard.agent.web.stacks import SEEN_SECONDS, Turns
from laggard.kit.config import load
from laggard.stacks.ask import MIN_SECONDS_BETWEEN

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
def test_without_a_token_the_jobs_own_user_alone_reads_and_asks(start_agent: Start, start_rank: Start) -> None:
    """By the kernel's word on who has connected: whatever the request says."""
    start_rank(rank=0)
    agent = start_agent()
    for path, method in (("/api/v1/stacks", "GET"), ("/api/v1/stacks/ask", "POST")):
        reply = agent.request(f"{path}?owner={NOBODY}&job=j1", method, **BEARER)
        assert reply.status == 403 and "stacks_token_file" in reply.json()["error"]
        assert reply.text.count("\n") == 0
        assert agent.request(f"{path}?owner={os.geteuid()}&job=j1", method).status == 200


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
