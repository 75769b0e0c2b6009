"""A question to acknowledge a finding, or to withdraw that: checked, made into an acknowledgement, and signed by the
token for the way to a collector."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

from msgspec import structs

from laggard.acknowledge.matching import covered
from laggard.catalogue.findings import FINDINGS
from laggard.model import Finding
from laggard.secret_files import proved_by
from laggard.wire import encode
from laggard.wire.acknowledgement import ALL_CODES, ANY_DEVICE, AcknowledgeAsk, Acknowledgement, Covered
from laggard.wire.exclusion import ConfirmAsk

T = TypeVar("T", AcknowledgeAsk, ConfirmAsk)

_CODES: Final = frozenset(it.code for it in FINDINGS)


class NotAcknowledged(ValueError):
    """The question cannot be granted. The text is one line that says what to do."""


def acknowledgement(ask: AcknowledgeAsk, present: Iterable[Finding], now: float) -> Acknowledgement:
    """What `ask` acknowledges. `present`: the findings on its nodes now, to which it is bound where it names no device.
    Raises NotAcknowledged."""
    if ask.code != ALL_CODES and ask.code not in _CODES:
        raise NotAcknowledged(f"no finding has the code {ask.code!r}; `laggard findings list` lists them all")
    if not ask.nodes or not all(ask.nodes):
        raise NotAcknowledged("name the node")
    if not ask.seconds:
        raise NotAcknowledged("say for how long: it ends by itself")
    if not ask.reason.strip():
        raise NotAcknowledged("give a reason, for those who read it later")
    covers = _covers(ask, [it for it in present if it.code == ask.code])
    return Acknowledgement(
        secrets.token_hex(4), ask.code, ask.nodes, ask.by, ask.reason, now, now + ask.seconds, covers
    )


def _covers(ask: AcknowledgeAsk, found: list[Finding]) -> tuple[Covered, ...]:
    if ask.code == ALL_CODES or ask.device == ANY_DEVICE:
        return ()
    known = tuple(dict.fromkeys(covered(it) for it in found if ask.device in ("", it.device)))
    if known:
        return known
    if not ask.device:
        raise NotAcknowledged(
            f"{', '.join(ask.nodes[:4])} has no {ask.code} now: name the device as findings have it (--device), or "
            "--device '*' for any"
        )
    return (Covered(ask.device),)


def without(known: tuple[Acknowledgement, ...], id: str) -> tuple[Acknowledgement, ...]:
    """`known` without the one of that id. Raises NotAcknowledged where there is none."""
    rest = tuple(it for it in known if it.id != id)
    if len(rest) == len(known):
        raise NotAcknowledged(f"no acknowledgement has the id {id!r}: `laggard findings acknowledged` lists them")
    return rest


def signed(token: str, ask: T) -> T:
    return structs.replace(ask, proof=_proof(token, ask))


def is_signed(tokens: Sequence[str], ask: AcknowledgeAsk | ConfirmAsk) -> bool:
    """Whether somebody who knows one of the tokens asks this."""
    proof = ask.proof.encode()
    return proved_by(tokens, lambda token: hmac.compare_digest(proof, _proof(token, ask).encode())) is not None


def _proof(token: str, ask: AcknowledgeAsk | ConfirmAsk) -> str:
    data = encode(structs.replace(ask, proof=""))
    purpose = b"laggard confirm\0" if isinstance(ask, ConfirmAsk) else b"laggard acknowledge\0"
    return hmac.new(token.encode(), purpose + data, hashlib.sha256).hexdigest()
