"""What the log says of agents that change their state."""

from __future__ import annotations

from laggard.collector.scrape.agent_state import LINE_SECONDS, StateChanges


def test_a_thousand_agents_that_go_down_are_one_line() -> None:
    changes = StateChanges()
    for number in range(1000):
        changes.add(f"http://n{number}", "down", "connection refused")
    ((_, line),) = changes.lines(0.0)
    assert line.startswith("1000 agents are down: http://n0 (connection refused), ") and line.endswith(" and 996 more")


def test_one_line_a_minute_holds_what_came_since() -> None:
    changes = StateChanges()
    changes.add("a", "down", "x")
    assert len(changes.lines(0.0)) == 1
    for now in range(1, 60, 5):  # b flaps
        changes.add("b", "up", "")
        changes.add("b", "down", "y")
        changes.add("c", "slow", "z")
        changes.lines(float(now))
    assert [line for _, line in changes.lines(LINE_SECONDS)] == ["1 agent is down: b (y)"]
