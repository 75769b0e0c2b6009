"""Environments as text: `env`, `export -p`, /proc/PID/environ, nccl.conf, or a JSON object of variables. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

_LINE = re.compile(r"""\s*(?:export\s+|declare\s+-x\s+|-x\s+|set\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)""")
_NAME = re.compile(r"[A-Z_][A-Z0-9_]*")
_MIN_SHARE = 0.6  # of the lines; the others continue values, or are functions of the shell
_SAMPLE_LINES = 400
_SAMPLE_CHARACTERS = 1 << 18
_MAX_JSON_CHARACTERS = 1 << 20
"""The most characters of an environment as JSON, more than the kernel lets it have; parsed JSON takes up to seventy
times its length."""


def is_environment(text: str) -> bool:
    """Whether most lines set a variable, or the text is an object of variables."""
    if text.lstrip().startswith("{"):
        return bool(_from_json(text))
    lines = [
        line for line in _lines(text[:_SAMPLE_CHARACTERS])[:_SAMPLE_LINES] if line.strip() and not line.startswith("#")
    ]
    hits = sum(1 for line in lines if _LINE.fullmatch(line))
    return hits > 0 and hits >= _MIN_SHARE * len(lines)


def parse_environment(text: str) -> dict[str, str]:
    """Returns the variables; of one that is set twice the last value, as in a shell."""
    if text.lstrip().startswith("{"):
        return _from_json(text)
    matches = (_LINE.fullmatch(line) for line in _lines(text))
    return {match[1]: _unquoted(match[2]) for match in matches if match}


def _lines(text: str) -> list[str]:
    return [line.rstrip("\r") for line in text.replace("\0", "\n").split("\n")]


def _unquoted(value: str) -> str:
    value = value.strip()
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
        return value[1:-1]
    return value


def _from_json(text: str) -> dict[str, str]:
    """Returns the variables of an object whose keys are names of variables, or of such an object one level below."""
    if len(text) > _MAX_JSON_CHARACTERS:
        return {}
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    candidates = [tree, *tree.values()] if isinstance(tree, dict) else []
    return next((found for candidate in candidates if (found := _variables(candidate))), {})


def _variables(tree: Any) -> dict[str, str]:
    if not isinstance(tree, dict) or not tree:
        return {}
    plain = {
        key: str(value) for key, value in tree.items() if _NAME.fullmatch(key) and isinstance(value, (str, int, float))
    }
    return plain if len(plain) >= _MIN_SHARE * len(tree) else {}
