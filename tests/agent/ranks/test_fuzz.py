"""Rank files with right checksums and any numbers, as a user may write them: what the agent tells of them is possible
to its collector, which would refuse the whole node for one number, and the file of another rank is told of all the
same."""

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.agent.ranks.reader import RankFiles, read_collectives
from laggard.agent.ranks.row import Now, read_rank
from laggard.collector.scrape.validation import validate_collectives, validate_ranks
from laggard.rankfile import BeatRecord, GroupState, Lane, RankFileError
from laggard.rankfile.layout import COUNTERS_FIXED, STEP_BODY
from laggard.rankfile.writer import RankFileWriter
from laggard.wire import encode
from laggard.wire.ranks import CollectivesDocument

PARTS = ("identity", "lanes", "counters", "steps", "collectives", "beat", "words")
NODE = "n0"
MAX_INT64 = 2**63 - 1
SECOND = 10**9
sound = st.integers(0, 20 * SECOND)
numbers = st.one_of(
    sound,
    st.sampled_from([0, -1, 1, 2**48, 2**53, 2**62, MAX_INT64, -MAX_INT64 - 1]),
    st.integers(-MAX_INT64 - 1, MAX_INT64),
)
words = st.one_of(st.text(max_size=100), st.sampled_from(["all_reduce", "send", "dp:0-3", "\x00", "\u202e"]))
peers = st.one_of(st.integers(-1, 7), st.integers(-(2**31), 2**31 - 1))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)
facts = st.one_of(
    st.binary(max_size=60),
    st.dictionaries(words, values, max_size=4).map(lambda it: json.dumps(it).encode()),
    st.fixed_dictionaries({
        "ending": st.fixed_dictionaries({"exit_code": values, "at_seconds": values, "exception": values}) | values,
        "gpu": values, "groups": values, "transport": values, "script": values, "started": values
    }).map(lambda it: json.dumps(it).encode()),
)  # fmt: skip


def now() -> Now:
    """The node started half a minute ago: what is sound is younger."""
    return Now(30 * SECOND, time.time_ns())


def identity(job: str, **changes: Any) -> dict[str, Any]:
    clocks = {"wall_ns": now().wall_ns, "monotonic_ns": now().monotonic_ns}
    names = {"job_id": job, "rank": 1, "local_rank": 0, "world_size": 8, "node": NODE, "gpu": None, "attempt": 0}
    return names | clocks | changes


def wild_identity(draw: Any) -> dict[str, Any]:
    count = ("rank", "local_rank", "world_size", "attempt", "wall_ns", "monotonic_ns")
    kinds = {"job_id": words, "node": words, "gpu": values} | dict.fromkeys(count, numbers)
    name = draw(st.sampled_from(sorted(kinds)))
    return {name: draw(kinds[name])}


@contextlib.contextmanager
def written(folder: Path, draw: Any) -> Iterator[Path]:
    """A rank file, parts of which have any number and text."""
    wild = draw(st.sets(st.sampled_from(PARTS), max_size=3))

    def of(part: str) -> st.SearchStrategy[int]:
        return numbers if part in wild else sound

    writer = RankFileWriter(str(folder), identity("theirs", **(wild_identity(draw) if "identity" in wild else {})))
    try:
        for lane in draw(
            st.lists(st.builds(Lane, words, words, words, peers if "lanes" in wild else st.just(-1)), max_size=3)
        ):
            writer.add_lane(lane)
        writer.write_counters(
            draw(st.lists(of("counters"), min_size=COUNTERS_FIXED, max_size=COUNTERS_FIXED)),
            draw(of("counters").map(lambda it: [it] * 9)),
        )
        numbers_of_step = STEP_BODY.size // 8
        for step in draw(
            st.lists(st.lists(of("steps"), min_size=numbers_of_step, max_size=numbers_of_step), max_size=4)
        ):
            writer.write_step(*step)
        records = draw(st.lists(st.lists(of("collectives"), min_size=5, max_size=5), max_size=4))
        writer.write_collectives(draw(of("collectives")), [number for record in records for number in record])
        recorder = numbers if "beat" in wild else st.integers(0, 2)
        groups = draw(st.lists(st.builds(GroupState, words, *[of("beat")] * 4), max_size=2))
        counts = draw(st.lists(st.tuples(of("beat"), of("beat")), max_size=3))
        clocks = [draw(of("beat")) for _ in range(3)]
        writer.write_beat(BeatRecord(*clocks[:2], draw(recorder), tuple(counts), tuple(groups), clocks[2]))
        with contextlib.suppress(ValueError):  # longer than fits
            writer.write_facts(draw(facts))
        for word in range(5):
            writer.words[word] = draw(of("words"))
        yield Path(writer.path)
    finally:
        writer.words[4] = 1
        writer.close()


@settings(max_examples=40, deadline=None, database=None, derandomize=True)
@given(data=st.data())
def test_whatever_a_file_holds_the_collector_takes_the_nodes_answer(tmp_path_factory: Any, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("ranks")
    honest = RankFileWriter(str(folder), identity("ours", rank=0))
    with contextlib.closing(honest), written(folder, data.draw) as path:
        document = validate_ranks(encode(RankFiles(str(folder), NODE, now).read(since=0.0)))
        assert "ours" in {row.job_id for row in document.ranks}
        validate_ranks(encode(RankFiles(str(folder), NODE, now).read()))
        with contextlib.suppress(RankFileError):
            snapshot = read_rank(str(path), NODE, now())
            row, found = snapshot.row, read_collectives(snapshot)
            told = CollectivesDocument(NODE, row.owner, row.job_id, (found,) if found else ())
            validate_collectives(encode(told), row.owner, row.job_id, (row.rank,))
