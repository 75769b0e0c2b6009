"""Addresses of collectors as people write them."""

from support.rows import rows

from laggard.kit.address import as_url


@rows("addresses")
def test_a_host_and_port_is_an_address(written: str, url: str) -> None:
    assert as_url(written, 19401) == url
