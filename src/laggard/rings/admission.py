"""The admission of processes to a ring. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from laggard.rings.authentication import is_proof, member_proof
from laggard.rings.messages import Hello
from laggard.rings.options import first_difference
from laggard.text.words import printable_line

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
