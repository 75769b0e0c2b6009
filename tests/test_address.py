"""Addresses of collectors as people write them."""

from __future__ import annotations

import pytest

from laggard.kit.address import as_url


@pytest.mark.parametrize(
    ("written", "url"),
    [
        ("127.0.0.1:27401", "http://127.0.0.1:27401"),
        ("n1", "http://n1:19401"),
        ("[::1]:27401", "http://[::1]:27401"),
        ("[::1]", "http://[::1]:19401"),
        ("ann:secret@n1:27401", "http://ann:secret@n1:27401"),
        ("n1:27401/laggard", "http://n1:27401/laggard"),
        ("https://n1", "https://n1"),
        ("", ""),
    ],
)
def test_a_host_and_port_is_an_address(written: str, url: str) -> None:
    assert as_url(written, 19401) == url
