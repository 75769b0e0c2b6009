"""Addresses as people may see them. Standard library only."""

from __future__ import annotations


def without_login(url: str) -> str:
    """`url` for messages, logs and pages: less the user and the password before its host, and less its query and
    fragment, which may hold a token. It need not be an address."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    host_and_path = rest.rpartition("@")[2]  # the last one: a password may have an @
    return scheme + separator + host_and_path.partition("?")[0].partition("#")[0]
