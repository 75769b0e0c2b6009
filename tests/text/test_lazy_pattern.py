"""A pattern that is compiled when it is first used does what a compiled one does."""

import re

import pytest

from laggard.kit.words import lazy_pattern


@pytest.mark.parametrize("method", ["match", "fullmatch", "search"])
@pytest.mark.parametrize("text", ["GPU 7", "a GPU 7 here", "gpu 12", "", "none"])
def test_it_finds_the_same(method: str, text: str) -> None:
    lazy, compiled = lazy_pattern(r"gpu (\d+)", re.IGNORECASE), re.compile(r"gpu (\d+)", re.IGNORECASE)
    for _ in range(2):
        found, due = getattr(lazy, method)(text), getattr(compiled, method)(text)
        assert (found and found.span(1)) == (due and due.span(1))
    assert lazy.sub("x", text) == compiled.sub("x", text) and lazy.findall(text) == compiled.findall(text)
    assert (lazy.pattern, lazy.flags) == (compiled.pattern, compiled.flags)


def test_a_mistake_is_told_at_the_first_use() -> None:
    wrong = lazy_pattern("(")
    with pytest.raises(re.error):
        wrong.match("")
