"""The agent's configuration: a YAML file, with flags over it, with the environment under it. Durations in seconds."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping

from msgspec import structs

from laggard.config import Settings, load
from laggard.constants import AGENT_PORT
from laggard.environment import node_name, rank_dir
from laggard.errors import UsageError
from laggard.probes.profiles import PROFILES

LISTEN_ADDRESS = f":{AGENT_PORT}"
PROFILE = "periodic"


class AgentSettings(Settings, frozen=True):
    listen_address: str = LISTEN_ADDRESS
    rank_dir: str = ""
    """Empty: LAGGARD_RANK_DIR, /run/laggard/ranks where that is, else /dev/shm/laggard."""
    node: str = ""
    """Empty: LAGGARD_NODE, else the host name."""
    profile: str = PROFILE
    """Which probes, and how strictly they are taken: a name, or a file, as `laggard healthcheck --profile` has it."""
    probe_interval_seconds: float = 60.0
    rank_interval_seconds: float = 5.0
    """The age up to which a scrape takes an earlier look at the rank files. The API always looks anew."""


_POSITIVE = ("probe_interval_seconds", "rank_interval_seconds")


def settle(arguments: argparse.Namespace, environ: Mapping[str, str]) -> AgentSettings:
    """Flag, else file, else environment. Raises UsageError."""
    settings = load(arguments.config, AgentSettings) if arguments.config else AgentSettings()
    for name in ("listen_address", "rank_dir", "node", "profile"):
        given = getattr(arguments, name)
        if given is not None:
            settings = structs.replace(settings, **{name: given})
    for name in _POSITIVE:
        value = getattr(settings, name)
        if not (math.isfinite(value) and value > 0):
            raise UsageError(f"{name} is {value}: give a number above 0")
    directory = settings.rank_dir or rank_dir(environ)
    if os.path.exists(directory) and not os.path.isdir(directory):
        raise UsageError(f"{directory} is no directory; choose one with --rank-dir")
    return structs.replace(
        settings,
        rank_dir=directory,
        node=settings.node or node_name(environ),
        profile=_profile(settings.profile),
    )


def _profile(name: str) -> str:
    """The prober works in another directory: a file's path must not depend on ours."""
    return os.path.abspath(name) if name not in PROFILES and os.path.exists(name) else name
