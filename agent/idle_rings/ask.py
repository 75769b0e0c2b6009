"""Asks the collector whether a ring is due. Both sides prove that they know the token: who merely has the collector's
address can have nothing started here."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from laggard.address import without_login
from laggard.http.client import NoResponse, post
from laggard.rings.authentication import new_nonce, signed, signer
from laggard.text.words import printable_line
from laggard.wire import WireError, decode, encode
from laggard.wire.idle_rings import RingAsk, RingDue

_ANSWER_SECONDS: Final = 10.0


class NoAnswer(Exception):
    """There is no answer to trust. The text says why."""


def ask_for_ring(collector: str, node: str, tokens: Sequence[str]) -> RingDue:
    """`tokens`: of which the first signs the question, and either the answer. Raises NoAnswer."""
    ask = signed(tokens[0], "agent", RingAsk(node, time.time(), new_nonce()))
    try:
        due = decode(post(f"{collector}/api/v1/rings/due", encode(ask), _ANSWER_SECONDS).body, RingDue)
    except (NoResponse, WireError) as error:
        raise NoAnswer(f"the collector {without_login(collector)}: {printable_line(str(error), 300)}") from None
    if due.nonce != ask.nonce or signer(tokens, "collector", due) is None:
        raise NoAnswer(
            f"the collector {without_login(collector)} does not prove that it knows the token: nothing is started"
        )
    return due
