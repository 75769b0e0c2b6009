"""Each rule of `laggard diagnose` is proven: by a text that it takes, and by texts with its words that it leaves alone.
The texts are data, tests/data/rules; docs/tasks/diagnose-rule.md tells how a rule is added."""

from __future__ import annotations

import pytest
from support.diagnosed import diagnose_text
from support.rule_tables import RULE_LINES, TABLES, Proof, proofs

PROOFS = [proof for table in TABLES for proof in proofs(table)]
NAMES = [f"{proof.table}-{proof.fires[:60]}" for proof in PROOFS]


def found(text: str) -> list[tuple[str, str, str]]:
    return [(each.code, each.severity.value, each.device) for each in diagnose_text(text).findings]


@pytest.mark.parametrize("table", TABLES)
def test_each_rule_has_a_text_that_it_takes(table: str) -> None:
    known = TABLES[table]
    reached = {id(known.reached(proof.fires)) for proof in proofs(table)}
    missing = [known.pattern(rule) for rule in known.rules if id(rule) not in reached]
    assert not missing, f"no line of tests/data/rules/{table}.jsonl reaches these rules: {missing}"


def test_each_file_of_lines_is_of_a_table() -> None:
    assert {path.stem for path in RULE_LINES.iterdir()} == set(TABLES)


@pytest.mark.parametrize("proof", PROOFS, ids=NAMES)
def test_a_rule_finds_what_it_is_for(proof: Proof) -> None:
    assert found(TABLES[proof.table].frame(proof.fires)) == ([proof.finds] if proof.finds else [])


@pytest.mark.parametrize("proof", PROOFS, ids=NAMES)
def test_a_rule_leaves_texts_alone_that_have_its_words(proof: Proof) -> None:
    table = TABLES[proof.table]
    assert proof.near
    for text, code in proof.near:
        assert [each[0] for each in found(table.frame(text))] == ([code] if code else []), text
        assert code or table.reached(text) is not table.reached(proof.fires) or proof.table in _JUDGED_BY_VALUE, text


_JUDGED_BY_VALUE = frozenset(
    {"counters", "nvlink_counters", "services", "stuck_processes", "sacct", "job_exits", "pods"}
)
"""The tables whose rules take a name, and then look at its value."""
