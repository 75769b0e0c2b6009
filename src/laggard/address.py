"""Addresses as people may see them. Standard library only."""

from __future__ import annotations


def as_url(address: str, port: int) -> str:
    """`address` as a URL where it is written as HOST or HOST:PORT; `port`: for one that names none. What names its
    scheme stays as it is."""
    if not address or "://" in address:
        return address
    server, slash, path = address.partition("/")
    host = server.rpartition("@")[2]
    named = host.rpartition(":")[2].isdecimal() and not host.endswith("]") and (host.count(":") == 1 or "]:" in host)
    return f"http://{server}{'' if named else f':{port}'}{slash}{path}"


def without_login(url: str) -> str:
    """`url` for messages, logs and pages: less the user and the password before its host, and less its query and
    fragment, which may hold a token. It need not be an address."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    host_and_path = rest.rpartition("@")[2]  # the last one: a password may have an @
    return scheme + separator + host_and_path.partition("?")[0].partition("#")[0]
