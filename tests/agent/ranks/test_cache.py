"""The cache of the rank files' contents."""

from __future__ import annotations

import pytest

from laggard.agent.ranks.reader import RankCache
from laggard.wire.ranks import RanksDocument


def test_what_was_read_is_shared_until_it_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("laggard.agent.ranks.reader.time.monotonic", lambda: now)
    documents: list[RanksDocument] = []

    def read() -> RanksDocument:
        documents.append(RanksDocument("n0", "boot", float(len(documents)), (), ()))
        return documents[-1]

    cache = RankCache(read, 0.2)
    assert documents == []  # nobody asked
    assert cache.get() is cache.get() is documents[0]
    now = 100.19
    assert cache.get() is documents[0]
    now = 100.21
    assert cache.get() is documents[1] and len(documents) == 2
