"""The boards have Grafana's own form, as grafana-foundation-sdk has it, and one that is broken has not."""

import pytest
from support.boards import BOARDS

pytest.importorskip("grafana_foundation_sdk", reason="no Python below 3.11 has it: the boards' form was not looked at")

from support.grafana_schema import problems_of

BY_UID = {board["uid"]: board for board in BOARDS}


@pytest.mark.parametrize("uid", BY_UID)
def test_a_board_has_the_form(uid: str) -> None:
    assert problems_of(BY_UID[uid]) == []


def test_what_is_no_board_at_all_is_told_of() -> None:
    assert problems_of({"panels": 7, "schemaVersion": 42})
