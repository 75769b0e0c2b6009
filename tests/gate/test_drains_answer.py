"""What the collector said of a node's drain holds while it says nothing, whatever keeps its answers away."""

import json
import time
from pathlib import Path

import pytest

from laggard.gate import drain_cap as module
from laggard.gate.drain_cap import HOLDS_SECONDS, drains_answer
from laggard.gate.memory import forget_grant
from laggard.kit.http_client import Busy, ClientResponse, NoResponse, NotReached
from laggard.wire import WireError

URL = "http://collector:19401/api/v1/drains?node=n0"


class Collector:
    """Stands in for what the network brings of a collector's answer."""

    def __init__(self) -> None:
        self.said: Exception | bytes = b""

    def get(self, url: str, seconds: float) -> ClientResponse:
        if isinstance(self.said, Exception):
            raise self.said
        return ClientResponse(self.said, {})


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Collector:
    monkeypatch.setenv("LAGGARD_STATE_DIR", str(tmp_path))
    made = Collector()
    monkeypatch.setattr(module, "get", made.get)
    return made


def answer(
    may_drain: bool = True, asker_fails: bool = True, answering: int = 100, asker_is_well: bool = False
) -> bytes:
    return json.dumps(
        {
            "may_drain": may_drain,
            "reason": "",
            "nodes": 100,
            "answering": answering,
            "failing": 1,
            "cap": 5,
            "max_drain_ratio": 0.05,
            "asker_fails": asker_fails,
            "asker_is_well": asker_is_well,
            "schema": "laggard.drains/1",
        }
    ).encode()


AWAY = [
    NoResponse("HTTP 502"),
    NoResponse("an answer that is not complete"),
    NoResponse("Connection refused"),
    Busy("it closed the connection"),
    b"{",
]


@pytest.mark.parametrize("away", AWAY, ids=str)
def test_a_node_that_it_let_be_drained_stays_out(away: Exception | bytes, collector: Collector) -> None:
    collector.said = answer()
    assert drains_answer(URL, 0.3).may_drain
    collector.said = away
    kept = drains_answer(URL, 0.3)
    assert kept.may_drain and kept.asker_fails


@pytest.mark.parametrize("away", AWAY, ids=str)
def test_nothing_holds_that_was_never_said_or_is_old(
    away: Exception | bytes, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector.said = away
    with pytest.raises((NoResponse, WireError)):
        drains_answer(URL, 0.3)
    collector.said = answer()
    drains_answer(URL, 0.3)
    now = module.time.time()
    monkeypatch.setattr(module.time, "time", lambda: now + HOLDS_SECONDS + 1)
    collector.said = away
    with pytest.raises((NoResponse, WireError)):
        drains_answer(URL, 0.3)


def test_a_late_report_of_the_agent_lets_no_rejected_node_pass_and_the_cap_does(collector: Collector) -> None:
    collector.said = answer()
    drains_answer(URL, 0.3)
    collector.said = answer(asker_fails=False)
    assert drains_answer(URL, 0.3).asker_fails
    collector.said = answer(may_drain=False)
    assert not drains_answer(URL, 0.3).may_drain
    collector.said = NoResponse("Connection refused")
    with pytest.raises(NoResponse):
        drains_answer(URL, 0.3)


def test_a_collector_that_sees_no_agent_lets_no_rejected_node_pass(
    collector: Collector, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has just started, or is overrun. That is no word on this node, and is none against a drain that it granted."""
    blind = answer(may_drain=False, asker_fails=False, answering=0)
    collector.said = blind
    assert not drains_answer(URL, 0.3).may_drain, "nothing was granted yet"
    collector.said = answer()
    drains_answer(URL, 0.3)
    collector.said = blind
    for _ in range(2):
        kept = drains_answer(URL, 0.3)
        assert kept.may_drain and kept.asker_fails
    assert "ago holds" in capsys.readouterr().err
    collector.said = answer(may_drain=False, asker_fails=False, answering=1)
    assert not drains_answer(URL, 0.3).may_drain, "the cap counts as soon as it sees somebody"


@pytest.mark.parametrize("flooded", [Busy("it closed the connection"), NotReached("no complete answer within 1 s")])
def test_a_flooded_collector_is_asked_for_longer_where_nothing_holds(
    flooded: NoResponse, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the node that fails for the first time would pass for a second's wait."""
    tries: list[float] = []

    def get(url: str, seconds: float) -> ClientResponse:
        tries.append(seconds)
        if len(tries) < 4:
            raise flooded
        return ClientResponse(answer(), {})

    monkeypatch.setattr(module, "get", get)
    assert drains_answer(URL, 0.1, patience=60.0).may_drain
    assert tries[0] <= 0.1 < max(tries[1:]), "the first try is short"
    monkeypatch.setattr(module, "get", collector.get)
    collector.said = flooded
    began = time.monotonic()
    assert drains_answer(URL, 0.1, patience=60.0).may_drain
    assert time.monotonic() - began < 50, "what it said before holds, and nobody waits"


def test_a_collector_that_refuses_connections_is_not_waited_for(collector: Collector) -> None:
    collector.said = NoResponse("Connection refused")
    began = time.monotonic()
    with pytest.raises(NoResponse):
        drains_answer(URL, 0.1, patience=60.0)
    assert time.monotonic() - began < 50


def test_a_node_that_is_seen_well_has_to_ask_anew(collector: Collector) -> None:
    """By the collector, or by the gate: what was granted before the repair says nothing about the next fault."""
    collector.said = answer()
    drains_answer(URL, 0.3)
    collector.said = answer(asker_fails=False, asker_is_well=True)
    assert not drains_answer(URL, 0.3).asker_fails
    collector.said = answer()
    drains_answer(URL, 0.3)
    forget_grant()
    collector.said = NoResponse("Connection refused")
    with pytest.raises(NoResponse):
        drains_answer(URL, 0.3)
