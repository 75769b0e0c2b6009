"""The limits on what other machines, other users' processes and files of settings say, as types: msgspec checks them
while it decodes.

A right type is not enough: a number can be absurd, and a name a megabyte long.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from msgspec import Meta

MAX_WORLD: Final = 1 << 20
MAX_TEXT: Final = 256
MAX_PROSE: Final = 4096
MAX_COUNT: Final = 1 << 53
"""The largest number that is exact in JSON."""
MAX_SECONDS: Final = 1e7
"""The longest step, 115 days."""
MAX_CLOCK: Final = 1e12

Text: TypeAlias = Annotated[str, Meta(max_length=MAX_TEXT)]
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]
Prose: TypeAlias = Annotated[str, Meta(max_length=MAX_PROSE)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
CountOrNone: TypeAlias = Annotated[int, Meta(ge=-1, lt=MAX_COUNT)]
"""-1: none."""
RankNumber: TypeAlias = Annotated[int, Meta(ge=0, lt=MAX_WORLD)]
Peer: TypeAlias = Annotated[int, Meta(ge=-1, lt=MAX_WORLD)]
"""The number of a rank; -1: none."""
WorldSize: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_WORLD)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=MAX_SECONDS)]
Clock: TypeAlias = Annotated[float, Meta(ge=0, le=MAX_CLOCK)]

# Of settings.
Duration: TypeAlias = Annotated[float, Meta(gt=0, le=1e9)]
"""Seconds, 31 years at most."""
DurationOrZero: TypeAlias = Annotated[float, Meta(ge=0, le=1e9)]
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Number: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
Port: TypeAlias = Annotated[int, Meta(ge=1, le=65_535)]

HOST: Final = r"^(\*|(\*\.)?[][A-Za-z0-9_:.-]+)$"
PROGRAM: Final = "^/"
NAME: Final = r"^[A-Za-z0-9][\w./-]{0,63}$"

FORMS: Final = {
    HOST: "a host's name alone, such as laggard.example.org, `*.example.org` or `*`",
    PROGRAM: "an absolute path",
    NAME: "a name of 64 letters, digits and `_./-` at most",
}
"""Patterns of settings in words, for who reads that a text does not match one. Their types stand where they are used,
since a type compiles its pattern."""
