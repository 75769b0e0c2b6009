"""The boards have Grafana's own form, as grafana-foundation-sdk has it, and one that is broken has not."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
from support.boards import BOARDS, Board

pytest.importorskip("grafana_foundation_sdk", reason="no Python below 3.11 has it: the boards' form was not looked at")

from support.grafana_schema import problems_of

BY_UID = {board["uid"]: board for board in BOARDS}

BROKEN: dict[str, Callable[[Board, Board], object]] = {
    "panels[1].gridpos": lambda _, panel: panel.update(gridpos=panel.pop("gridPos")),
    "panels[1].grid_pos.h": lambda _, panel: panel["gridPos"].update(h="4"),
    "panels[1].options.color_mode": lambda _, panel: panel["options"].update(colorMode="rainbow"),
    "panels[1].options.colour": lambda _, panel: panel["options"].update(colour="red"),
    "panels[1].targets[0].legend": lambda _, panel: panel["targets"][0].update(legend="x"),
    "panels[1].targets[0].format_val": lambda _, panel: panel["targets"][0].update(format="graph"),
    "panels[1].field_config.defaults.thresholds.mode": lambda _, panel: panel["fieldConfig"]["defaults"][
        "thresholds"
    ].update(mode="relative"),
    "panels[3].transformations[0].name": lambda board, _: board["panels"][3]["transformations"][0].update(name="x"),
    "graph_tooltip": lambda board, _: board.update(graphTooltip=7),
    "templating.list_val[1].type_val": lambda board, _: board["templating"]["list"][1].update(type="nothing"),
    "annotations.list[0].icon": lambda board, _: board["annotations"]["list"][0].update(icon="x"),
    "schema_version": lambda board, _: board.update(schemaVersion="42"),
}
"""Where the schema is broken, and what breaks it, of the board of a job and its first panel."""


@pytest.mark.parametrize("uid", BY_UID)
def test_a_board_has_the_form(uid: str) -> None:
    assert problems_of(BY_UID[uid]) == []


@pytest.mark.parametrize("where", BROKEN)
def test_a_broken_board_is_told_of(where: str) -> None:
    board = copy.deepcopy(BY_UID["laggard-job"])
    BROKEN[where](board, board["panels"][1])
    problems = problems_of(board)
    assert len(problems) == 1 and problems[0].startswith(f".{where}: "), problems


def test_what_is_no_board_at_all_is_told_of() -> None:
    assert problems_of({"panels": 7, "schemaVersion": 42})
