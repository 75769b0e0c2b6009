"""The settings of `laggard agent --idle-rings`: a YAML file. Durations in seconds."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from typing import Literal

from msgspec import structs

from laggard.address import as_url, without_login
from laggard.config import Settings, load
from laggard.constants import COLLECTOR_PORT
from laggard.environment import ENV_RING_TOKEN_FILE, node_name, rank_dir
from laggard.errors import UsageError
from laggard.rings.place import read_tokens
from laggard.secret_files import TokenFile


class IdleRingsSettings(Settings, frozen=True):
    collector: str = ""
    """The collector that plans the rings, as http://HOST:PORT. It has to be given."""
    token_file: str = ""
    """A file with the secret that the collector's `ring_token_file` has, read anew when it changes. Where empty: the
    file that LAGGARD_RING_TOKEN_FILE names, else LAGGARD_RING_TOKEN, which holds until the end. Without one nothing is
    asked, and nothing starts."""
    node: str = ""
    """The name that this machine's agent reports. Where empty: LAGGARD_NODE, else the host name."""
    rank_dir: str = ""
    """The directory in which ranks write their files, as the agent's. Empty: LAGGARD_RANK_DIR, else /run/laggard/ranks
    if that exists, else /dev/shm/laggard."""
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """NCCL on GPUs (`cuda`), gloo on CPUs (`cpu`), or what the machine has (`auto`)."""
    user: str = "laggard"
    """The user to whom the ring's own processes belong where root starts this; any other user's are his own."""


def resolve_settings(arguments: argparse.Namespace, environ: Mapping[str, str]) -> IdleRingsSettings:
    """Returns the settings with every empty one filled in. Raises UsageError."""
    settings = load(arguments.config, IdleRingsSettings) if arguments.config else IdleRingsSettings()
    if arguments.collector is not None:
        settings = structs.replace(settings, collector=as_url(arguments.collector, COLLECTOR_PORT))
    if not settings.collector.startswith(("http://", "https://")):
        raise UsageError(
            f"collector is {without_login(settings.collector)!r}: give the collector that plans rings, http://HOST:PORT"
        )
    return structs.replace(
        settings,
        collector=settings.collector.rstrip("/"),
        node=settings.node or node_name(environ),
        rank_dir=settings.rank_dir or rank_dir(environ),
    )


def find_tokens(settings: IdleRingsSettings) -> Callable[[], tuple[str, ...]]:
    """Returns what tells the tokens, of which the first is sent; those of a file are read anew when it changes. Raises
    UsageError where there is none."""
    if settings.token_file:
        return TokenFile(settings.token_file, "token_file").accepted
    if named := os.environ.get(ENV_RING_TOKEN_FILE):
        return TokenFile(named, ENV_RING_TOKEN_FILE).accepted
    tokens = read_tokens(None)
    if not tokens:
        raise UsageError(
            "idle rings are off: no token. Give token_file, with the secret that the collector's ring_token_file has"
        )
    return lambda: tokens
