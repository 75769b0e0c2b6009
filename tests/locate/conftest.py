"""Localisation, on arrays: no test here starts a process."""

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.without_forks)
