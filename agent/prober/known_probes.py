"""What an agent's own process knows of the probes: that its profile can be used, and what a prolog asks for.

A child process works it out when the agent starts, since that takes the code of every probe, 3 MiB, which only the
prober needs later.
"""

from __future__ import annotations

from typing import Final

import msgspec

from laggard.agent.prober.variants import KnownProbes
from laggard.errors import UsageError
from laggard.probes.host.apart import NoChild, Stopped, apart
from laggard.probes.profiles import find_profile

_SECONDS: Final = 30.0
"""A cold file system may need seconds for a hundred modules."""


class _Refused(msgspec.Struct, tag="refused"):
    message: str


class _Known(msgspec.Struct, tag="known"):
    known: KnownProbes


_ANSWER: msgspec.msgpack.Decoder[_Refused | _Known] = msgspec.msgpack.Decoder(_Refused | _Known)


def know_probes(profile: str, node: str) -> KnownProbes:
    """Raises UsageError where `profile` (a name or a path) cannot be used."""
    try:
        answer = _ANSWER.decode(apart(lambda _: msgspec.msgpack.encode(_answer(profile, node)), _SECONDS))
    except (NoChild, Stopped):
        answer = _answer(profile, node)
    if isinstance(answer, _Refused):
        raise UsageError(answer.message)
    return answer.known


def _answer(profile: str, node: str) -> _Refused | _Known:
    from laggard.agent.prober.stricter import known_by  # loads the probes
    from laggard.probes.choose import choose_probes

    try:
        return _Known(known_by(choose_probes(find_profile(profile), (), (), f"profile {profile}"), node))
    except UsageError as error:
        return _Refused(str(error))
