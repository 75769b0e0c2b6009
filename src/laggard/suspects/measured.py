"""What a ring found of a suspect, as the collector keeps it. Pure, but for the word to the collector."""

from __future__ import annotations

import secrets
import time
from typing import Final

from laggard import wire
from laggard.address import without_login
from laggard.collector_client import ask
from laggard.errors import UsageError
from laggard.rings.document import Ring
from laggard.text.words import printable_line
from laggard.wire.exclusion import MAX_PEERS, MAX_SWAPS, ConfirmAsk, Confirmation, ConfirmedDocument, SwapFigure, signed

_MAX_NAME: Final = 256


def confirmation_of(ring: Ring, node: str, by: str, at: float) -> Confirmation | None:
    """The measurement of `node`, by the name that the collector has for it; None where the ring could not tell. The
    suspect's own exchanges come first."""
    suspect = ring.suspect
    if suspect is None or suspect.outcome not in ("confirmed", "acquitted"):
        return None
    names = {it.number: node if it.number == suspect.number else it.node[:_MAX_NAME] for it in ring.nodes}
    swaps = sorted(suspect.swaps, key=lambda it: suspect.number not in (it.first, it.second))
    figures = (
        SwapFigure(names.get(it.first, "?"), names.get(it.second, "?"), it.busbw_bytes_per_second) for it in swaps
    )
    return Confirmation(
        node=node,
        outcome=suspect.outcome,
        at=at,
        by=by,
        why=printable_line(suspect.why, 500),
        peers=tuple(name for number, name in names.items() if number != suspect.number)[:MAX_PEERS],
        rate_ratio=suspect.ratio,
        compute_ratio=suspect.compute_ratio,
        swaps=tuple(figures)[:MAX_SWAPS],
    )


def tell(collector: str, token: str, confirmation: Confirmation) -> ConfirmedDocument:
    """Has the collector keep the measurement. Raises UsageError."""
    question = ConfirmAsk(confirmation, time.time(), secrets.token_hex(16))
    body = ask(collector, "confirm", wire.encode(signed(token, question)))
    try:
        return wire.decode(body, ConfirmedDocument)
    except wire.WireError as error:
        raise UsageError(f"the collector at {without_login(collector)} is of another version: {error}") from None
