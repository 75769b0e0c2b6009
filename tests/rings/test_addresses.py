"""What the ranks of a ring tell one another: who hears it, whose word counts, and its bounds."""

from __future__ import annotations

import pytest

from laggard.rings.authentication import Strangers
from laggard.rings.link import Addresses
from laggard.rings.messages import MAX_PART_BYTES, Connected, Put, Value, Want


def test_who_waits_is_told_and_the_first_word_counts() -> None:
    held = Addresses()
    assert held.want(1, Want("a", 0)) is None and held.want(2, Want("a", 0)) is None
    told = held.put(Put("a", 0, 1, b"right"))
    assert told is not None and told[0] == Value("a", 0, 1, b"right") and set(told[1]) == {1, 2}
    assert held.put(Put("a", 0, 1, b"wrong")) is None
    assert held.want(1, Want("a", 0)) == Value("a", 0, 1, b"right")


def test_a_rank_waits_for_one_value_at_a_time() -> None:
    held = Addresses()
    held.want(1, Want("a", 0))
    held.want(1, Want("b", 0))
    first, second = held.put(Put("a", 0, 1, b"")), held.put(Put("b", 0, 1, b""))
    assert first is not None and not first[1]
    assert second is not None and set(second[1]) == {1}


@pytest.mark.parametrize(
    "told",
    [
        Put("k" * 201, 0, 1, b""),
        Put("a", 1, 1, b""),
        Put("a", -1, 1, b""),
        Put("a", 0, 1 << 20, b""),
        Put("a", 0, 1, b"x" * (MAX_PART_BYTES + 1)),
    ],
)
def test_what_is_out_of_bounds_is_not_held(told: Put) -> None:
    assert Addresses().put(told) is None


def test_a_stranger_is_an_end_that_no_rank_has() -> None:
    seen = Strangers()
    seen.note(0, Connected(("10.0.0.1:5", "10.0.0.1:40"), ()))
    seen.note(1, Connected(("10.0.0.2:6",), ("10.0.0.1:40", "10.0.0.9:7")))
    assert seen.found((0,)) == ()
    assert seen.found((0, 1)) == ("10.0.0.9:7",)
    errors = ["[x/pair.cc:547] Connection closed by peer [10.0.0.8]:9", "Read error [10.0.0.1]:40: reset"]
    assert seen.found((0,), errors) == ("10.0.0.8:9",)
