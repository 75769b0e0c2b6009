"""The coordinator's address in torchrun's own store, which holds MASTER_PORT, so that the coordinator cannot."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from laggard.rings.messages import Learn, Publish

_KEY: Final = "laggard/ring/coordinator"
_CONNECT_SECONDS: Final = 30.0
_MAX_CHARACTERS = 300


def publish(torch: Any, command: Publish) -> None:
    _store(torch, command.host, command.port, _CONNECT_SECONDS).set(_KEY, command.text)


def learn(torch: Any, command: Learn) -> str:
    value: bytes = _store(torch, command.host, command.port, command.seconds).get(_KEY)
    return value[:_MAX_CHARACTERS].decode(errors="replace")


def _store(torch: Any, host: str, port: int, seconds: float) -> Any:
    limit = timedelta(seconds=seconds)
    return torch.distributed.TCPStore(host, port, None, False, limit, wait_for_workers=False)
