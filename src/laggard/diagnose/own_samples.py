"""Samples of a rank under laggard that went on while it was looked at: `laggard stacks --save` keeps them. Where its
time goes shows beside its peers alone, so they are compared by `locate`; ranks that stood still are read by the
joiner."""

from __future__ import annotations

from typing import Final

from laggard.diagnose.file_content import FileContent
from laggard.diagnose.file_format import FileFormat, FileJudgement, KnownHardware
from laggard.stacks.frames import place_text
from laggard.stacks.sampled import KEY, SampledError, decode

_HEAD: Final = b'{"%b"' % KEY.encode()


def recognise(content: FileContent) -> bool:
    return content.raw_beginning.startswith(_HEAD)


def judge(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    try:
        sampled = decode(content.raw)
    except SampledError as error:
        return FileJudgement(unknown=str(error))
    most = max(sampled.training.stacks, key=lambda stack: stack.times)
    share = 100 * most.times / max(1, sampled.training.samples)
    where = f"rank {sampled.rank} goes on, {share:.0f} % of its samples are in {place_text(most.frames)}"
    return FileJudgement(unknown=f"{where}: `laggard locate --trace FOLDER` compares it with its peers")


OWN_SAMPLES: Final = FileFormat("rank's samples", recognise, judge)
