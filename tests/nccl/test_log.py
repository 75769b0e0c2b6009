"""Reading NCCL's logs: messages of every release, any launcher's prefix, interleaved, torn and cut-off lines."""

import json
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.nccl_logs import log_expectations, log_text
from support.rows import rows

from laggard.nccl.log.model import Communicator, Connection, NcclLog, NcclProcess
from laggard.nccl.log.reader import NcclLogReader, parse_nccl_log
from laggard.probes.nccl.model.job import HardwareFacts
from laggard.probes.nccl.rules.log_findings import judge_nccl_log

PREFIX = "node-7:4242:4250 [3] NCCL INFO "
SAMPLES = tuple(log_expectations())
LAUNCHERS = (
    "",
    "0: ",
    "127: ",
    "[default3]:",
    "[1,0]<stdout>:",
    "[1,14]<stderr>: ",
    "2026-05-05T06:16:47.123456Z ",
    "[2026-05-05 06:16:47] ",
    "May  5 06:16:47 head slurmstepd[312]: ",
    "[pod/trainer-worker-0/pytorch] ",
    "trainer-worker-0 | ",
    "(RayTrainWorker pid=8123, ip=10.0.0.4) ",
    "\x1b[36m(RayTrainWorker pid=8123)\x1b[0m ",
    "(EngineCore_DP0 pid=77) ",
    "head: node-7: ",
    "step 17/100  45%|####   | loss=2.31\r",
)


def only(text: str) -> NcclProcess:
    (process,) = parse_nccl_log(text).processes
    return process


def process_of(*messages: str) -> NcclProcess:
    return only("".join(f"{PREFIX}{message}\n" for message in messages))


def connection_in(line: str) -> Connection:
    (found,) = process_of(line).connections
    return found


@rows("nccl/channels")
def test_a_channel_line_of_every_release(line: str, expected: tuple[object, ...]) -> None:
    assert connection_in(line)[:5] == expected


@pytest.mark.parametrize(
    "line", ["CollNet 00/0 : 3 [send] via COLLNET/SHARP/1/GDRDMA", "Coll 00 : 3 [send] via COLLNET/SHARP/1/GDRDMA"]
)
def test_a_channel_to_a_switch(line: str) -> None:
    assert connection_in(line) == Connection("COLLNET", "SHARP", 1, "send", True, 1)


@pytest.mark.parametrize("end", ["", "/", "/GDR", "/GDRDM", "x", "/GDRDMA/flush=No 3: x"])
def test_a_channel_line_that_is_cut_off_is_dropped(end: str) -> None:
    process = process_of(f"Channel 00/0 : 1[1] -> 8[0] [receive] via NET/IB/{'0' if end else ''}{end}")
    assert process.connections == (), "half a line must not show that GPUDirect is off"


def test_channels_are_counted_by_connection_with_their_pairs() -> None:
    process = process_of(*(f"Channel {n:02d}/0 : 1[1] -> {8 + n % 2}[0] [send] via NET/IB/0/GDRDMA" for n in range(6)))
    assert process.connections == (Connection("NET", "IB", 0, "send", True, 6, ((1, 8), (1, 9))),)
    assert process.rank == 1


@rows("nccl/communicators")
def test_a_communicator_of_every_release(lines: tuple[str, ...]) -> None:
    world = process_of(*lines).world
    assert world is not None
    assert world._replace(identity="") == Communicator("", 3, 8, None, None, 3, "b1000", True)


def test_several_lines_of_a_communicator_are_merged() -> None:
    process = process_of(
        "ncclCommInitRank comm 0x7f rank 3 nranks 16 cudaDev 3 nvmlDev 3 busId b1000 commId 0xde4 - Init START",
        "comm 0x7f rank 3 nRanks 16 nNodes 2 localRanks 8 localRank 3 MNNVL 0",
        "ncclCommInitRank comm 0x9a rank 0 nranks 2 cudaDev 3 nvmlDev 3 busId b1000 commId 0x111 - Init START",
        "comm 0x7f rank 3 nranks 16 cudaDev 3 busId b1000 - Destroy COMPLETE",
        "ncclCommInitRank comm 0x7f rank 1 nranks 4 cudaDev 3 nvmlDev 3 busId b1000 commId 0x222 - Init START",
    )
    assert {(one.identity, one.rank, one.ranks, one.nodes) for one in process.communicators} == {
        ("0xde4", 3, 16, 2),
        ("0x111", 0, 2, None),
        ("0x222", 1, 4, None),
    }
    assert process.rank == 3, "the rank is that of the largest communicator"


@rows("nccl/variables")
def test_a_variable_that_nccl_read(line: str, name: str, value: str) -> None:
    assert dict(process_of(line).variables) == {name: value}


@rows("nccl/hints")
@pytest.mark.parametrize(
    "head",
    [
        PREFIX,
        "node-7:4242:4250 [3] misc/ibvwrap.cc:63 NCCL WARN ",
        "[2026-03-02 02:11:09] node-7:4242:4250 [3] transport/net.cc:334 NCCL WARN ",
        "[2026-03-02 02:11:09] node-7:4242:4250 [3] transport/net.cc:334 (ncclNetInit) NCCL WARN ",
    ],
    ids=["info", "warning", "dated", "function"],
)
def test_a_hint_is_found_in_information_and_in_warnings(head: str, line: str, kind: str) -> None:
    process = only(f"{head}{line}\n")
    assert [(hint.kind, hint.text) for hint in process.hints] == [(kind, line)]
    assert (process.host, process.pid, process.warnings) == ("node-7", 4242, ())


def test_a_warning_that_is_no_known_hint_is_kept() -> None:
    process = only("node-7:4242:4250 [3] transport/p2p.cc:12 NCCL WARN Cuda failure 800 'operation not permitted'\n")
    assert process.warnings == ("Cuda failure 800 'operation not permitted'",)


@rows("nccl/devices")
def test_the_devices_of_a_network(line: str, devices: tuple[str, ...] | None) -> None:
    assert process_of(line).rdma_devices == devices


def test_distances_between_gpus_from_the_graph() -> None:
    process = process_of("GPU/0-1B000 :GPU/0-1B000 (0/5000.0/LOC) GPU/0-43000 (2/24.0/PHB) CPU/0-0 (1/24.0/PHB) ")
    assert process.links == (("1b000", "43000", "PHB"),)


@rows("nccl/bare_versions")
def test_a_version_line_without_a_process(text: str) -> None:
    assert parse_nccl_log(text).versions == ("2.7.8",)


@rows("nccl/rccl_versions")
def test_the_version_of_rccl(line: str, version: str) -> None:
    versions = (version,) if version else ()
    assert parse_nccl_log(f"{line}\nHIP version  : 6.4.43484-123eb5128\n").versions == versions
    (process,) = parse_nccl_log(f"{PREFIX}{line}\n{PREFIX}Bootstrap: Using eth0:10.0.0.1<0>\n").processes
    assert process.version == ("" if line[0] in "0#" else version)


def test_lines_without_their_prefix_belong_to_a_process_without_a_name() -> None:
    process = only("NCCL INFO Using network Socket\n")
    assert (process.host, process.pid, process.network) == ("", 0, "Socket")


@pytest.mark.parametrize("prefix", LAUNCHERS)
@pytest.mark.parametrize("name", SAMPLES)
def test_a_launchers_prefix_changes_nothing(name: str, prefix: str) -> None:
    plain = parse_nccl_log(log_text(name))
    prefixed = "".join(prefix + line if line.strip() else line for line in log_text(name).splitlines(keepends=True))
    assert parse_nccl_log(prefixed).processes == plain.processes


def test_the_json_of_a_container_runtime_changes_nothing() -> None:
    text = log_text("roce_gpudirect")
    wrapped = "".join(json.dumps({"log": line, "stream": "stdout"}) + "\n" for line in text.splitlines(keepends=True))
    assert parse_nccl_log(wrapped).processes == parse_nccl_log(text).processes


@given(
    st.sampled_from(SAMPLES),
    st.randoms(use_true_random=False),
    st.lists(st.sampled_from(LAUNCHERS), min_size=1),
)
@settings(max_examples=60)
def test_interleaved_processes_read_as_if_alone(name: str, chance: random.Random, prefixes: Sequence[str]) -> None:
    by_process: dict[str, list[str]] = {}
    for line in log_text(name).splitlines():
        if " NCCL " in line:
            key = line[: line.index(" NCCL ")].partition(" [")[0].removeprefix("[2026-03-02 02:11:09] ")
            by_process.setdefault(key.split(":")[0] + key.split(":")[1], []).append(line)
    queues = [list(reversed(lines)) for lines in by_process.values()]
    mixed = []
    while any(queues):
        mixed.append(chance.choice(prefixes) + chance.choice([queue for queue in queues if queue]).pop())
    alone = [one for lines in by_process.values() for one in parse_nccl_log("\n".join(lines) + "\n").processes]
    together = parse_nccl_log("\n".join(mixed) + "\n").processes
    assert sorted(together) == sorted(alone)


@given(st.sampled_from(SAMPLES), st.lists(st.integers(1, 4000), max_size=20))
@settings(max_examples=60)
def test_the_pieces_in_which_a_log_comes_do_not_matter(name: str, lengths: list[int]) -> None:
    text = log_text(name)
    reader, at = NcclLogReader(), 0
    for length in lengths:
        reader.feed(text[at : at + length])
        reader.log()
        at += length
    reader.feed(text[at:])
    assert reader.log() == parse_nccl_log(text)


@given(st.sampled_from(["roce_gpudirect", "vendor_network", "gdr_receives_only"]), st.data())
@settings(max_examples=150)
def test_a_healthy_log_that_is_cut_off_gives_no_finding(name: str, data: st.DataObject) -> None:
    text = log_text(name)
    cut = text[data.draw(st.integers(0, len(text))) :][: data.draw(st.integers(0, len(text)))]
    judgement = judge_nccl_log(parse_nccl_log(cut), HardwareFacts())
    assert [found.summary for found in judgement.findings] == []
    if " via " not in cut:
        assert judgement.gaps, "a log without a channel is not fine"


@given(st.sampled_from(["roce_gpudirect", "vendor_network"]), st.data())
@settings(max_examples=150)
def test_lines_torn_by_other_processes_give_no_finding(name: str, data: st.DataObject) -> None:
    """A line is written into the middle of another, whose rest comes after it."""
    lines = log_text(name).splitlines()
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(lines) - 2))
        place = data.draw(st.integers(0, len(lines[at])))
        torn = lines[at][:place] + lines[at + 1], lines[at][place:]
        lines[at : at + 2] = torn
    judgement = judge_nccl_log(parse_nccl_log("\n".join(lines) + "\n"), HardwareFacts())
    assert [(found.summary, found.evidence) for found in judgement.findings] == []


@given(st.text() | st.binary().map(lambda data: data.decode(errors="replace")))
def test_text_without_nccl_is_no_log(text: str) -> None:
    if "NCCL" not in text:
        assert parse_nccl_log(text) == NcclLog((), (), 0, 0, 0)
        assert judge_nccl_log(parse_nccl_log(text), HardwareFacts()).gaps


VOCABULARY = (
    "Channel 00/0 : 1[1] -> 8[0] [receive] via NET/IB/0/GDRDMA NET/Socket/0 SHM/direct comm 0x1 rank nranks nNodes "
    "set by environment to NCCL_NET_GDR_LEVEL NCCL_ALGO NCCL WARN INFO GPU/18000 :GPU/18000 (1/2/NVL) Using network "
    "Mismatched version detected 999999999999999 -1 \0 \x1b[31m"
)
WORDS = st.sampled_from(VOCABULARY.split(" "))


@given(st.lists(st.lists(WORDS | st.text(max_size=8), max_size=14).map(" ".join), max_size=12))
def test_values_are_bounded_whatever_a_line_says(texts: list[str]) -> None:
    log = parse_nccl_log("".join(f"{PREFIX}{text}\n" for text in texts))
    judge_nccl_log(log, HardwareFacts())
    for process in log.processes:
        assert sum(one.channels for one in process.connections) <= sum(text.count("via") for text in texts)
        assert all(one.ranks < 10**9 for one in process.communicators)
        assert set(name[:5] for name, _ in process.variables) <= {"NCCL_"}


@pytest.mark.parametrize(
    "line",
    [
        "x" * 60_000 + " NCCL INFO Using network IB",
        "1:" * 30_000 + " NCCL INFO " + "1:" * 30_000 + " NCCL INFO x",
        PREFIX + "NET/IB : Using " + "[0]a:1" * 10_000,
        PREFIX + "Channel 00/0 : " + "1[" * 30_000 + " via NET/" + "IB/0" * 10_000,
        PREFIX + "comm " * 12_000,
        PREFIX + "GPU/18000 :" + "GPU/1" * 12_000,
        PREFIX + "NET/OFI No " + "provide" * 9_000,
        "{" * 60_000 + ' NCCL INFO \\n"',
        "\x1b[" * 30_000 + " NCCL INFO x",
    ],
)
def test_no_line_takes_long(line: str) -> None:
    """Each line has 60 KB of text on which a pattern could backtrack."""
    import time

    start = time.process_time()
    parse_nccl_log((line + "\n") * 20)
    assert time.process_time() - start < 60.0  # of CPU; a twentieth of a second where nothing backtracks


def test_memory_is_bounded_however_long_the_log() -> None:
    reader = NcclLogReader()
    reader.feed("x" * (3 << 20) + "\n")
    for number in range(20_000):
        reader.feed(f"{PREFIX}Channel 00/0 : 1[1] -> {number}[0] [send] via NET/IB/0\n")
        reader.feed(f"{PREFIX}NCCL_X{number} set by environment to 1.\n")
    (process,) = reader.log().processes
    assert sum(one.channels for one in process.connections) == 20_000, "each channel is counted"
    assert len(process.connections[0].pairs) <= 64 and len(process.variables) <= 128


def test_what_nccl_calls_to_attention_is_a_warning() -> None:
    """NCCL 2.32 logs fallbacks and degraded links at a level of its own."""
    text = "MNNVL busId 0x1b000 NVLink fabric health reports DEGRADED_BANDWIDTH (healthMask 0x1)"
    (process,) = parse_nccl_log(f"gpu00:81:93 [0] init.cc:900 (ncclCommInit) NCCL ATTN {text}\n").processes
    assert (process.host, process.pid, process.warnings) == ("gpu00", 81, (text,))
