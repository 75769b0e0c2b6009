"""`laggard mcp`: answers an assistant's questions about the cluster over standard input and output, by the Model
Context Protocol. It only reads: it asks a collector what everybody may ask it who reaches it."""

from __future__ import annotations

import argparse
import functools
import inspect
import json
from collections.abc import Callable

from laggard import __version__
from laggard.assistant.questions import JOB, NOTE, QUESTIONS, Asked, Fetch, collector_fetch, marked, told
from laggard.collector_client import COLLECTOR_HELP, DEFAULT_URL
from laggard.errors import UsageError

_INSTRUCTIONS = (
    f"Health and stragglers of GPU training on a cluster. Begin with `verdict`; all tools only read. {JOB} {NOTE}"
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--collector", metavar="URL", default=DEFAULT_URL, help=COLLECTOR_HELP)


def main(arguments: argparse.Namespace) -> int:
    """Serves until the assistant closes standard input, then returns 0."""
    serve(collector_fetch(arguments.collector))
    return 0


def serve(fetch: Fetch) -> None:
    from mcp.server import MCPServer
    from mcp.types import ToolAnnotations

    server = MCPServer("laggard", instructions=_INSTRUCTIONS, version=__version__, log_level="ERROR")
    reads = ToolAnnotations(readOnlyHint=True, destructiveHint=False, idempotentHint=True, openWorldHint=False)
    for question in QUESTIONS:
        server.add_tool(_tool(question, fetch), annotations=reads, structured_output=False)
    server.run("stdio")


def _tool(question: Callable[..., Asked], fetch: Fetch) -> Callable[..., str]:
    """The question with its name, parameters and docstring, as the SDK reads them."""

    @functools.wraps(question)
    def tool(*arguments: object, **named: object) -> str:
        try:
            return told(question(*arguments, **named), fetch)
        except UsageError as error:  # what the collector says may hold others' words, too
            return marked(json.dumps({"error": str(error)}))

    told_signature = inspect.signature(question, eval_str=True).replace(return_annotation=str)
    tool.__signature__ = told_signature  # type: ignore[attr-defined]
    return tool
