"""Makes one script of the page's modules, for a page that loads nothing. Pure.

The modules are written so that a few lines can do it: each import names what it takes from a file beside it, on one
line, and what is exported is a function or a constant of the module. Anything else raises ValueError.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_IMPORT = re.compile(r'^import \{ ([\w, ]+) \} from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function|const) (\w+))", re.MULTILINE)
_OTHER = re.compile(r"^(?:import|export)\b.*$", re.MULTILINE)


def bundle(entry: str, modules: Mapping[str, str]) -> str:
    """A script that does what the module `entry` does. `modules`: the text of each by its name, as `dom.js`. Each keeps
    a scope of its own."""
    parts: dict[str, str] = {}
    _add(entry.removesuffix(".js"), modules, parts)
    return '"use strict";\n' + "".join(parts.values())


def _add(name: str, modules: Mapping[str, str], parts: dict[str, str]) -> None:
    """Adds the module after those that it imports. A circle of imports would be named by the browser: there is none."""
    text = modules[f"{name}.js"]
    for _, imported in _IMPORT.findall(text):
        if imported not in parts:
            _add(imported, modules, parts)
    exported = [found for _, found in _EXPORT.findall(text)]
    body = _EXPORT.sub(r"\1", _IMPORT.sub(r"const { \1 } = module_\2;" + "\n", text))
    if left := _OTHER.search(body):
        raise ValueError(f"{name}.js: {left.group()!r} cannot be bundled")
    parts[name] = f"const module_{name} = (() => {{\n{body}return {{ {', '.join(exported)} }};\n}})();\n"
