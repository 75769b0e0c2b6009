"""Cuts what torch's debug server answers into the answers of the ranks: its pages, as `curl` saves them, and the files
that it writes into its folder of dumps. Pure.

The forms are those of torch 2.10 to 2.13, torch/distributed/debug/_frontend.py and _debug_handlers.py.
"""

from __future__ import annotations

import html
import re
from typing import Final, NamedTuple

from laggard.diagnose.parts.part import MAX_PARTS, Part

HANDLER: Final = "/handler/"
_HEAD = re.compile(
    r"^[ \t]{0,40}(?:<h[23]>|=== |--- )Rank (?P<rank>\d{1,7}): https?://(?P<host>[\w.-]{1,253}|\[[\da-f:]{1,45}\])"
    r"(?::\d{1,5})?/handler/(?P<asked>\w{1,64})[^\s<]{0,200}(?P<end></h[23]>| ===| ---)[ \t]*$",
    re.MULTILINE,
)
_PRE = re.compile(r"<pre>(.*?)(?:</pre>|\Z)", re.DOTALL)
_FAILED = re.compile(r"^[ \t]{0,40}(?:<p>Failed to fetch: status=|Error: )(\d{3})\b", re.MULTILINE)
_DUMPS: Final = ("fr_trace_json", "dump_nccl_trace_json", "torchcomms_fr_trace_json")


class Answer(NamedTuple):
    """`asked`: the handler, as `dump_traceback`. `status`: of HTTP; 408, 502 and 503 are the page's own words for a
    worker that cannot be reached."""

    rank: int
    host: str
    asked: str
    status: int
    text: str


def answers(text: str) -> tuple[Answer, ...]:
    """Returns the answers; none where the text is nothing of the debug server."""
    heads = [head for head, _ in zip(_HEAD.finditer(text), range(MAX_PARTS), strict=False)] if HANDLER in text else []
    ends = [*(head.start() for head in heads), len(text)][1:]
    return tuple(_answer(head, text[head.end() : end]) for head, end in zip(heads, ends, strict=True))


def _answer(head: re.Match[str], body: str) -> Answer:
    failed = _FAILED.search(body)
    if "</h" in head["end"]:
        page = _PRE.search(body)
        body = html.unescape(page[1]) if page else ""
    status = int(failed[1]) if failed else 200
    return Answer(int(head["rank"]), head["host"], head["asked"], status, body)


def split_dumps(text: str) -> tuple[Part, ...]:
    """Returns the Flight Recorder dump of each rank, named as dumps are: by the number at the end."""
    found = (it for it in answers(text) if it.asked in _DUMPS and it.status == 200 and it.text.lstrip()[:1] == "{")
    return tuple(Part(f"rank_{it.rank}.json", it.host, it.text.strip()) for it in found)
