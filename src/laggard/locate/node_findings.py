"""The findings of one machine as localisation needs them: their codes, and of which GPUs they are. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

UNLISTED: Final = ""
"""The stand-in for the UUID of a GPU that the machine's driver does not list, as one that fell off the bus."""

UNNAMED: Final = "?"
"""The stand-in for the UUID of a GPU whose name does not say which it is."""


_WHOLE_GPU = "GPU-"


class Place(enum.Enum):
    """The place of a finding, seen from a rank."""

    OWN = "of its GPU, or of something near it"
    MACHINE = "of the whole machine"
    UNKNOWN = "of a GPU, and nobody can say whether it is the rank's"
    ELSEWHERE = "of another GPU"


class NodeFindings(NamedTuple):
    """`codes` are those of the machine's findings, each once. `of_gpus` has, by the codes that are of single GPUs,
    the UUIDs of these; a code that is not there is of the whole machine. `gpus` are the UUIDs of all GPUs that the
    machine's driver lists; empty: its agent does not tell."""

    codes: tuple[str, ...] = ()
    of_gpus: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    gpus: tuple[str, ...] = ()

    def place(self, code: str, gpu: str | None) -> Place:
        """The place of the finding for a rank that trains on the GPU with the UUID `gpu`. Where the machine does not
        list that, nobody can say: it may be a part of any (MIG). A whole one that fell off the bus is the finding's."""
        if code not in self.of_gpus:
            return Place.MACHINE
        about = self.of_gpus[code]
        if gpu in self.gpus:
            return Place.OWN if gpu in about else Place.UNKNOWN if UNNAMED in about else Place.ELSEWHERE
        fell_off = bool(self.gpus) and UNLISTED in about and (gpu or "").startswith(_WHOLE_GPU)
        return Place.OWN if fell_off else Place.UNKNOWN

    def has_everywhere(self, code: str) -> bool:
        """Whether the whole machine or each of its GPUs has the finding."""
        return code in self.codes and set(self.gpus) <= set(self.of_gpus.get(code, self.gpus))

    def only(self, codes: tuple[str, ...]) -> NodeFindings:
        """Those of these codes."""
        kept = tuple(code for code in self.codes if code in codes)
        return NodeFindings(kept, {code: self.of_gpus[code] for code in kept if code in self.of_gpus}, self.gpus)


NOTHING: Final = NodeFindings()
