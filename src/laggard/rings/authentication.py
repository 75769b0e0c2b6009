"""Proof that a node knows the ring's token, without sending it: HMAC-SHA256 over both sides' nonces. Pure but for the
nonces.

It keeps strangers and other rings' nodes out of this one, and what nodes and coordinator say afterwards is signed, line
by line, with a key that only these two know. Nothing is encrypted, and the data that ranks exchange by gloo or NCCL is
not signed: a ring belongs on the network that the training itself trusts.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import structs

from laggard.kit.secret_files import proved_by
from laggard.kit.words import printable_line
from laggard.rings.messages import Connected, Hello
from laggard.rings.options import first_difference
from laggard.wire import encode


def new_nonce() -> str:
    return secrets.token_hex(16)


def member_proof(token: str, challenge: str, hello: Hello) -> str:
    """The proof is over all that the node says of itself."""
    return _proof(token, "member", challenge, encode(structs.replace(hello, proof="")).decode())


def shown_token(tokens: Sequence[str], challenge: str, hello: Hello) -> str:
    """Returns the one of the tokens that the node has proved to know; the first where it proves none. Where no token
    is needed it is empty."""
    proved = proved_by(tokens or ("",), lambda token: is_proof(hello.proof, member_proof(token, challenge, hello)))
    return next(iter(tokens), "") if proved is None else proved


def coordinator_proof(token: str, challenge: str, nonce: str) -> str:
    return _proof(token, "coordinator", challenge, nonce)


def session_key(token: str, challenge: str, nonce: str) -> bytes:
    """Returns the key of what a node and the coordinator say to each other on this connection, and on no other."""
    return bytes.fromhex(_proof(token, "session", challenge, nonce))


def line_proof(key: bytes, side: str, number: int, line: bytes) -> bytes:
    """Returns the proof of the line `number`, counted from 0, that `side` (`member`, `coordinator`) says. No line can
    be altered, left out, said again, or turned back upon its sender."""
    return hmac.new(key, f"{side} {number} ".encode() + line, hashlib.sha256).hexdigest().encode()


def is_proof(proof: str, expected: str) -> bool:
    return hmac.compare_digest(proof.encode(), expected.encode())


def _proof(token: str, side: str, challenge: str, nonce: str) -> str:
    text = "\0".join(("laggard ring", side, challenge, nonce))
    return hmac.new(token.encode(), text.encode(), hashlib.sha256).hexdigest()


def token_of_ring(token: str, ring_id: str) -> str:
    """Returns the secret of one ring, so that a node which comes late to another one is none of it."""
    return hmac.new(token.encode(), f"laggard idle ring\0{ring_id}".encode(), hashlib.sha256).hexdigest()


MAX_RANKS: Final = 1024
"""The most ranks of one node."""

MAX_NAME: Final = 80
"""The most characters of a node's name."""


def refusal(
    hello: Hello, present: Mapping[int, Hello], nodes: int, token: str, challenge: str, names: Sequence[str] = ()
) -> str:
    """Returns why the node that says `hello` is refused, in one line for it; empty: it may take part. `present`: the
    nodes that have come, with which it must agree; `names`: those of the nodes, where a launcher tells them."""
    if not is_proof(hello.proof, member_proof(token, challenge, hello)):
        return "it has another token than the ring's"
    if hello.nodes != nodes:
        return f"it was started for {hello.nodes} nodes, the ring has {nodes}: give all nodes the same --nodes"
    if not 0 <= hello.index < nodes:
        return f"node {hello.index} of {nodes}: --node-rank goes from 0 to {nodes - 1}"
    if names and hello.node != names[hello.index][:MAX_NAME]:
        own, right = printable_line(hello.node, MAX_NAME), printable_line(names[hello.index], MAX_NAME)
        return f"it says that it is {own}, and node {hello.index} is {right}"
    if hello.index in present:
        other = printable_line(present[hello.index].node, 80)
        return f"{other} is node {hello.index} already: give each node a --node-rank of its own"
    if not 1 <= hello.ranks <= MAX_RANKS:
        return f"it has {hello.ranks} ranks: 1 to {MAX_RANKS} are possible"
    for index, other_hello in sorted(present.items())[:1]:
        difference = _difference(hello, other_hello)
        if difference:
            return f"it has {difference} of node {index}: all nodes need the same"
    return ""


def _difference(hello: Hello, other: Hello) -> str:
    for name in ("laggard", "torch", "nccl", "device", "job"):
        mine, theirs = getattr(hello, name), getattr(other, name)
        if mine != theirs:
            return printable_line(f"{name} {mine or 'none'} in place of {theirs or 'none'}", 200)
    difference = first_difference(other.options, hello.options)
    return f"the option {difference}" if difference else ""


# Strangers at the ranks' own ports. Pure.
#
# gloo and NCCL have no passwords: who connects to a rank's port before another rank does can be taken for it. The
# exchange then fails, and that says nothing about a node. So ranks tell, over the coordinator, which ends their
# connections have: one that a rank took from an end which no rank has is a stranger's.

_MAX_ENDS: Final = 1 << 20
_ENDPOINT: Final = re.compile(r"\[([0-9A-Fa-f.:]{2,45})\]:(\d{1,5})\b")
"""The end that gloo names in an error: `Connection closed by peer [127.0.0.1]:4711`."""


class Strangers:
    def __init__(self) -> None:
        self._ends: set[str] = set()
        self._taken: dict[int, tuple[str, ...]] = {}

    def note(self, rank: int, told: Connected) -> None:
        if len(self._ends) < _MAX_ENDS:
            self._ends.update(told.ends)
        self._taken[rank] = told.taken

    def found(self, ranks: Iterable[int], errors: Iterable[str] = ()) -> tuple[str, ...]:
        """Returns the ends that are connected to `ranks`, or that their `errors` name, and that no rank has."""
        seen = {end for rank in ranks for end in self._taken.get(rank, ())}
        named = {f"{host.removeprefix('::ffff:')}:{port}" for text in errors for host, port in _ENDPOINT.findall(text)}
        return tuple(sorted((seen | named) - self._ends))


def strangers_text(ends: tuple[str, ...], who: str) -> str:
    more = f" and {len(ends) - 3} more" if len(ends) > 3 else ""
    return (
        f"{who} failed while strangers were connected to its ranks' ports ({', '.join(ends[:3])}{more}): "
        "see who runs there, and measure again"
    )
