"""Lines and tables as rich draws them at a width: wrapped between words, commands whole, tables with what has room."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from laggard.kit.dressed import dressed
from laggard.kit.parts import Line, Part, Table, plain_text, rows


def drawn(*parts: Part, width: int = 60, colours: bool = False) -> str:
    file = io.StringIO()
    system = "standard" if colours else None
    Console(file=file, width=width, color_system=system, force_terminal=colours, _environ={}).print(
        dressed(parts), crop=False
    )
    return file.getvalue()


def rows_of(*parts: Part, width: int = 60) -> list[str]:
    return [row.rstrip() for row in drawn(*parts, width=width).splitlines()]


LONG = Line("  rank 3 ran out of the memory of its GPU, which another process of the node had taken before it began")


def test_a_long_line_goes_on_behind_its_indent_and_says_the_same() -> None:
    found = rows_of(LONG, width=40)
    assert max(map(len, found)) <= 40 and len(found) > 2
    assert found[0].startswith("  rank 3") and all(row.startswith("    ") for row in found[1:])
    assert " ".join(found).split() == LONG.text.split()
    assert rows_of(LONG, width=300) == rows_of(LONG, width=100), "prose is no wider than people read well"


def test_a_command_stands_behind_its_words_or_whole_on_a_row_of_its_own() -> None:
    line = Line("What to do:", command="nvidia-smi --query-compute-apps=pid,used_memory")
    assert rows_of(line, width=80) == [line.plain]
    assert rows_of(line, width=30) == [line.text, f"  {line.command}"]
    assert rows_of(Line(line.command, whole=True), width=20) == [line.command]
    assert rows_of(Line(f"run `{line.command}` there"), width=30) == ["run", f"  `{line.command}`", "  there"]


def test_what_matters_is_in_colour_and_without_colours_the_words_are_the_same() -> None:
    parts = (Line("Rank 3 failed first", "fail"), Line("What to do: see `laggard findings` on DISK_FULL"))
    found = drawn(*parts, colours=True)
    assert found.startswith("\x1b[1;31mRank 3 failed first\x1b[0m\n")
    assert "\x1b[36m`laggard findings`\x1b[0m" in found and "\x1b[1mDISK_FULL\x1b[0m" in found
    assert drawn(*parts) == plain_text(parts)


TABLE = Table(
    names=("node", "rate", "ratio", "why"),
    rows=(("n1", "12 GB/s", "0.5", "its link is slower in both directions"), ("n2", "24 GB/s", "1.0", "")),
    right=frozenset({"rate", "ratio"}),
    spare=("ratio", "rate"),
)


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (80, ["node", "rate", "ratio", "why"]),
        (55, ["node", "rate", "why"]),
        (50, ["node", "why"]),
        (30, ["node", "why"]),  # the last column wraps
    ],
)
def test_a_table_has_the_columns_for_which_there_is_room(width: int, columns: list[str]) -> None:
    found = rows_of(TABLE, width=width)
    assert found[0].split() == columns and max(map(len, found)) <= width
    why = TABLE.rows[0][3].split()
    assert [word for row in found for word in row.split() if word in why] == why, "no word is cut"


def test_if_a_value_would_be_cut_the_rows_are_told_as_sentences() -> None:
    found = rows_of(TABLE, width=12)
    assert max(map(len, found)) <= 12
    assert " ".join(" ".join(found).split()) == (
        "node n1, rate 12 GB/s, ratio 0.5, why its link is slower in both directions node n2, rate 24 GB/s, ratio 1.0"
    )


def test_a_script_gets_aligned_columns() -> None:
    assert plain_text([TABLE]) == (
        "node     rate  ratio  why\nn1    12 GB/s    0.5  its link is slower in both directions\nn2    24 GB/s    1.0\n"
    )


WORD = st.text("ab\u4e2d", min_size=1, max_size=9) | st.text("ab ", max_size=9).map(lambda text: f"`{text}`")


@given(st.lists(WORD, max_size=12), st.integers(3, 40), st.integers(0, 2))
def test_rows_hold_all_words_and_only_a_single_one_is_wider(words: list[str], width: int, indent: int) -> None:
    text = " ".join(words)
    pieces = [text[begin:end] for begin, end in rows(text, width, indent)]
    assert " ".join(pieces) == text, "and what is in backquotes is not broken"
    assert all(len(piece) <= width - (indent if number else 0) or piece in words for number, piece in enumerate(pieces))
