"""What a rank under laggard saw of another one that could write no stacks itself, when their job stood still: its
process, and where that stands in the kernel. The joiner puts it beside the stacks of the others."""

from __future__ import annotations

import re
from typing import Final

from laggard.diagnose.file_content import FileContent
from laggard.diagnose.file_format import FileFormat, FileJudgement, KnownHardware
from laggard.diagnose.joined.processes import UNANSWERED_HEAD

_STANDS: Final = re.compile(r"^Place: (.{1,200})$", re.MULTILINE)


def recognise(content: FileContent) -> bool:
    return UNANSWERED_HEAD.match(content.text[:512]) is not None


def judge(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    """Accuses nobody: that the others wait for it shows beside their files."""
    found = _STANDS.search(content.text)
    return FileJudgement(facts={"stands": found[1]} if found else {})


UNANSWERED: Final = FileFormat("rank without stacks", recognise, judge)
