"""The JSON documents that laggard's parts exchange. `encode` and `decode` are for any of them; the documents' types
stand in `ranks` and `nodes`, which a gate that exchanges neither does not import."""

from laggard.wire.codec import WireError, decode, encode

__all__ = ["WireError", "decode", "encode"]
