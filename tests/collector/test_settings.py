"""Targets and settings: what people write, and the error when it cannot be read."""

import socket
from pathlib import Path

import pytest
from support.agents import put
from support.rows import rows

from laggard.collector.settings import CollectorSettings, load_settings, read_url
from laggard.collector.targets import LOCAL_AGENT, parse_target, parse_targets
from laggard.kit.errors import UsageError
from laggard.kit.http_message import bind, url_of


@rows("collector/targets")
def test_targets(text: str, url: str) -> None:
    assert parse_target(text).url == url


def test_a_target_named_twice_is_scraped_once() -> None:
    assert len(parse_targets(["n1", "http://n1:19400", "n2"])) == 2


def loaded(folder: Path, text: str) -> CollectorSettings:
    """The settings of a file with this text."""
    file = folder / "collector.yaml"
    file.write_text(text)
    return load_settings(str(file), [], None, None)


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    settings = loaded(tmp_path, "targets: [n1, n2]\ninterval_seconds: 7\n")
    assert settings.targets == ("n1", "n2") and settings.interval_seconds == 7
    settings = load_settings(str(tmp_path / "collector.yaml"), ["n3"], ":0", 1.5)
    assert (settings.targets, settings.listen_address, settings.interval_seconds) == (("n3",), ":0", 1.5)
    assert load_settings(None, [], None, None).targets == (LOCAL_AGENT,)


def test_listen_addresses() -> None:
    with bind("127.0.0.1:0") as one, bind(":0") as every:
        assert url_of(one).startswith("http://127.0.0.1:") and not url_of(one).endswith(":0")
        assert url_of(every).startswith(("http://[::]:", "http://0.0.0.0:"))
        with pytest.raises(UsageError, match="in use.*--web.listen-address"):
            bind(f"127.0.0.1:{one.getsockname()[1]}")


def test_answers_in_two_parts_do_not_wait_for_the_client() -> None:
    with bind("127.0.0.1:0") as own, socket.create_connection(own.getsockname()), own.accept()[0] as accepted:
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


EVALUATORS = """
evaluators: main
prometheus: http://prometheus:9090
incidents_database: postgresql://db/laggard
"""


def test_evaluators_scrape_nobody(tmp_path: Path) -> None:
    """Not this machine's agent either, which a collector asks by default."""
    pytest.importorskip("psycopg")
    settings = loaded(tmp_path, EVALUATORS)
    assert settings.evaluators == "main" and settings.targets == ()


def by_file(folder: Path, text: str, more: str = "") -> CollectorSettings:
    secret = put(folder / "url", text)
    return loaded(
        folder, f"evaluators: main\nprometheus: http://prometheus:9090\nincidents_database_file: {secret}\n{more}"
    )


def test_the_url_of_a_database_may_be_a_secret_with_the_password_in_it(tmp_path: Path) -> None:
    """As operators of PostgreSQL in Kubernetes write it into a Secret."""
    pytest.importorskip("psycopg")
    settings = by_file(tmp_path, "postgres://laggard:s%40cr%3Aet@db.example:5433/app?sslmode=require\n")
    assert settings.incidents_database == "postgres://laggard@db.example:5433/app?sslmode=require"
    assert read_url(str(tmp_path / "url"), "x").password == "s@cr:et"
    for url in ("postgresql://db/laggard", "postgresql://me@db/laggard", "postgresql:///laggard?host=/run/pg"):
        assert by_file(tmp_path, url).incidents_database == url
        assert read_url(str(tmp_path / "url"), "x").password == ""
