"""gpu-check is a script of the repository, not part of the package."""

import pytest
from support.paths import REPOSITORY


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(REPOSITORY / "scripts")
