"""JSON documents that are nearly right: hypothesis changes some places of a valid one."""

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

NUMBERS = (
    0, -1, 1, 2, 3, 255, 2**31, 2**53, 2**53 + 1, 2**63, 2**64, -(2**63), 10**30, 0.5, -0.5, 1e-300, 1e7, 1e12, 1e300
)  # fmt: skip
TEXTS = ("", "\x00", "\u202e", "é" * 200, "a" * 300, "nan", "running", "died", "all_reduce", "send", "<b>", "0", "\n")
OTHERS = (None, True, False, [], {}, [[]], [None], {"": None}, {"a": {"b": []}})
Path = tuple[Any, ...]


def paths(tree: Any, here: Path = ()) -> Iterator[Path]:
    """Every place in the document, but for the whole."""
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, child in children:
        yield (*here, key)
        yield from paths(child, (*here, key))


def mutated(tree: Any, most: int = 4) -> st.SearchStrategy[Any]:
    """The document with up to `most` places exchanged for odd values or for other parts of itself, left out, or
    repeated."""
    places = list(paths(tree))
    values = st.one_of(
        st.sampled_from(NUMBERS),
        st.sampled_from(TEXTS),
        st.sampled_from(OTHERS),
        st.sampled_from(places).map(lambda place: _at(tree, place)),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=20),
    )
    ways = st.one_of(values.map(lambda value: ("put", value)), st.sampled_from([("drop", 0), ("repeat", 2)]))
    return st.lists(st.tuples(st.sampled_from(places), ways), min_size=1, max_size=most).map(
        lambda changes: _changed(tree, changes)
    )


def _at(tree: Any, place: Path) -> Any:
    for key in place:
        tree = tree[key]
    return tree


def _changed(tree: Any, changes: list[tuple[Path, tuple[str, Any]]]) -> Any:
    changed = copy.deepcopy(tree)
    for (*above, key), (way, value) in changes:
        try:
            parent = _at(changed, tuple(above))
            old = parent[key]
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took that place away
        if isinstance(parent, str):
            continue
        if way == "put":
            parent[key] = copy.deepcopy(value)
        elif way == "drop":
            del parent[key]
        elif isinstance(parent, list):
            parent.insert(key, copy.deepcopy(old))
    return changed
