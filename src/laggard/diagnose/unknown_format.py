"""The words for a file of no known format."""

from __future__ import annotations

from typing import Final

from laggard.diagnose.file_content import FileContent

_PACKED: Final = {b"\xfd7zXZ\x00": ("xz", "xz -dc"), b"BZh": ("bzip2", "bzip2 -dc")}
_BEGINNINGS: Final = {
    b"PK\x03\x04": "is a zip archive of a program's own (torch.save writes one), which holds no logs",
    b"SQLite format 3\0": "is an SQLite database (TraceML keeps one: give its final_summary.json)",
    b"\x80": "is a pickle, which laggard never loads: torchfrtrace reads the Flight Recorder's dumps",
    b"\x7fELF": "is a program or a core dump",
}
_TAR: Final = (257, b"ustar")
_BINARY_SHARE: Final = 0.1


def what_is_known(content: FileContent) -> str:
    """Returns what the file is instead, to follow its name in a sentence."""
    first = content.first_bytes
    if not first:
        return "" if content.problem else "is empty"
    for beginning, (name, command) in _PACKED.items():
        if first.startswith(beginning):
            return f"is packed with {name}: unpack it first, as in `{command} FILE | laggard diagnose -`"
    for beginning, known in _BEGINNINGS.items():
        if first.startswith(beginning):
            return known
    if first[_TAR[0] :].startswith(_TAR[1]):
        return "is a tar archive: give the files in it"
    if _is_binary(first):
        return "holds binary data of no known format"
    return "is of no known format (`laggard diagnose --help` lists those that are)"


def is_text(content: FileContent) -> bool:
    """Returns whether a content is a text, and is packed in no way that is known."""
    first = content.first_bytes
    packed = first.startswith((*_PACKED, *_BEGINNINGS)) or first[_TAR[0] :].startswith(_TAR[1])
    return bool(first) and not packed and not _is_binary(first)


def _is_binary(data: bytes) -> bool:
    strange = sum(byte < 32 and byte not in b"\t\n\r\x1b\x08\x0c" for byte in data)
    return strange > _BINARY_SHARE * len(data)
