"""Configuration files: YAML to typed, immutable values. An unknown key is an error that names the key's path."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, Final, TypeVar, get_args, get_type_hints

import msgspec

from laggard.kit.errors import UsageError
from laggard.kit.left import SETTINGS
from laggard.kit.limits import FORMS

T = TypeVar("T", bound="Settings")

_IMPOSSIBLE = re.compile("[\0\ud800-\udfff]")
_LOGIN = re.compile(r"(?<=://)[^\s\"']*@")


_MAX_CHARACTERS: Final = 1 << 20
"""The largest file of settings. PyYAML reads some 50,000 characters a second."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The base class of all settings: unknown keys are errors."""


def load(path: str | os.PathLike[str], settings_type: type[T], flag: str = "--config") -> T:
    """Returns the settings in the YAML file at `path`, which `flag` named. Raises UsageError, which names the file and
    the key."""
    return parse(_read(path, flag), settings_type, str(path))


def read_tree(path: str, flag: str) -> object:
    """Returns what the YAML file at `path` holds that is no file of settings, such as an object of Kubernetes; `flag`
    named it. Raises UsageError."""
    try:
        return _tree(_read(path, flag), path)
    except RecursionError:
        raise UsageError(f"{path} is nested too deeply") from None


def _read(path: str | os.PathLike[str], flag: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_MAX_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"cannot read {path}: {reason}; check the path given to {flag}") from None
    if len(text) > _MAX_CHARACTERS:
        raise UsageError(f"{path} has more than {_MAX_CHARACTERS} characters: it is no file of settings")
    return text


def parse(text: str, settings_type: type[T], where: str) -> T:
    """Returns the settings in `text`. Raises UsageError, in which `where` names the origin of the text."""
    try:
        tree = _tree(text, where)
        return msgspec.convert({} if tree is None else tree, settings_type, strict=True)
    except msgspec.ValidationError as error:
        text = yaml_message(str(error), settings_type.__struct_fields__)
        raise UsageError(f"{where}: {text}{_choices(text, settings_type)}") from None
    except RecursionError:
        raise UsageError(f"{where} is nested too deeply") from None


def replaced(settings: T, **given: object) -> T:
    """The settings with these values, of flags, in place of theirs; None: not given. Raises UsageError that names the
    key."""
    values = {name: value for name, value in given.items() if value is not None}
    try:
        msgspec.convert(values, type(settings), strict=True)
    except msgspec.ValidationError as error:
        raise UsageError(yaml_message(str(error), settings.__struct_fields__)) from None
    return msgspec.structs.replace(settings, **values)


def _tree(text: str, where: str) -> object:
    """The value that the YAML holds. Raises UsageError; RecursionError where it is nested too deeply, or holds
    itself."""
    import yaml  # not at the top: the gate rarely has a file of settings, and has to start fast

    try:
        tree = _loader()(text).get_single_data()
    except RecursionError:
        raise
    except UsageError as error:
        raise UsageError(f"{where} {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        raise UsageError(f"{where}{line} is not YAML: {getattr(error, 'problem', None) or 'unreadable'}") from None
    except Exception as error:  # PyYAML lets out what int(), a date or a look-up raise at a value like `!!int x`
        raise UsageError(f"{where} has a value that is none of its YAML type: {error}") from None
    if any(_IMPOSSIBLE.search(each) for each in _texts(tree)):
        raise UsageError(f"{where} has a text with a NUL or half a character (\\0, \\ud800): leave it out")
    return tree


@cache
def _loader() -> Any:
    """PyYAML's, which raises UsageError where a value stands for another one of the file (`*name`): ten lines of them
    are billions of values; and where a key stands twice, which YAML forbids (1.2.2, 3.2.1.3), and PyYAML does not."""
    import yaml

    class Strict(yaml.SafeLoader):
        peek_event: Callable[[], Any]

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                alias = self.peek_event()
                name, line = alias.anchor, alias.start_mark.line + 1
                raise UsageError(f"line {line} has an alias (*{name}): write the value itself")
            return super().compose_node(parent, index)

        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            lines: dict[tuple[str, str], int] = {}
            for key, line in ((key, key.start_mark.line + 1) for key, _ in node.value):
                if first := lines.get(name := (key.tag, str(key.value))):
                    raise UsageError(f"has the key `{key.value}` twice, in lines {first} and {line}: leave one out")
                lines[name] = line
            return node

    return Strict


def _texts(tree: object) -> Iterator[str]:
    """All texts in it, keys as well."""
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from _texts(key)
            yield from _texts(value)
    elif isinstance(tree, list | tuple | set):
        for each in tree:
            yield from _texts(each)


def yaml_message(message: str, keys: Iterable[str]) -> str:
    """msgspec's message in the words of YAML, with the valid keys where one is not known: `$.a.b` becomes `a.b`, a
    field is a key, an array a list. Of a key that has left it says what serves instead."""
    text = re.sub(r"`\$\.?", "`", message).replace(" - at ``", "")
    unknown = re.match(r"Object contains unknown field `([^`]*)`(.*)", text)
    if unknown and unknown[1] in SETTINGS:
        return f"the key `{unknown[1]}` left: {SETTINGS[unknown[1]]}"
    if unknown:
        return f"unknown key `{unknown[1]}`{unknown[2]}{_hint(unknown[1], list(keys))}"
    for pattern, meaning in FORMS.items():
        text = text.replace(f"`str` matching regex {pattern!r}", meaning)
    text = re.sub(r"`(\w+(?: \| \w+)*)`", lambda found: _kinds(found[1]), text)
    return text.replace("Expected ", "expected ", 1)


def _choices(message: str, settings_type: type[Settings]) -> str:
    """The words that a top-level key of a choice takes, after a message about it; empty: it is about another."""
    key = re.search(r" - at `(\w+)`$", message)
    if key is None:
        return ""
    words = get_args(get_type_hints(settings_type).get(key[1]))
    if not words or not all(isinstance(word, str) for word in words):
        return ""
    quoted = ", ".join(f'"{word}"' for word in words)
    hint = "in quotes, since YAML takes off, on, no and yes for true or false: " if "true or false" in message else ""
    return f"; write {hint}{quoted}"


_WORDS = {
    "object": "keys with values (`key: value`)",
    "array": "a list (`[a, b]`)",
    "float": "a number",
    "int": "a whole number",
    "str": "text",
    "bool": "true or false",
    "null": "nothing",
}


def _kinds(words: str) -> str:
    """Types as msgspec names them, such as `float | null`, in the words of YAML."""
    kinds = words.split(" | ")
    return " or ".join(_WORDS[kind] for kind in kinds) if _WORDS.keys() >= {*kinds} else f"`{words}`"


def _hint(key: str, keys: list[str]) -> str:
    import difflib  # here: most runs have no wrong key

    parts = [valid for valid in keys if key and (valid.startswith(key) or valid.endswith(f"_{key}"))]
    similar = parts[:1] or difflib.get_close_matches(key.replace("-", "_").replace(".", "_"), keys, n=1, cutoff=0.5)
    meant = f": did you mean {similar[0]}?" if similar else ";"
    return f"{meant} valid keys: {', '.join(keys)}"


def dump(settings: Settings) -> str:
    """The settings as YAML that load() reads, every key with its value, but for the user and password of a URL."""
    import yaml

    text: str = yaml.safe_dump(msgspec.to_builtins(settings), sort_keys=False, allow_unicode=True, width=120)
    return _LOGIN.sub("HIDDEN@", text)
