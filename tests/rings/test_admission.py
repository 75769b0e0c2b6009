"""Who is let into a ring, and what happens to it: a real coordinator, and hand-made nodes that connect to it."""

import asyncio
import contextlib
import functools
import inspect
import json
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from msgspec import structs

from laggard.kit.errors import UsageError
from laggard.rings import coordinator as coordinator_module
from laggard.rings import link as link_module
from laggard.rings import messages
from laggard.rings.authentication import line_proof, member_proof, session_key
from laggard.rings.coordinator import Coordinator, Failure, NotAllCame, RingFailed
from laggard.rings.link import Link
from laggard.rings.membership import Membership
from laggard.rings.messages import (
    Accepted,
    Beat,
    Begin,
    Challenge,
    End,
    Failed,
    FromRank,
    Hello,
    NodeShare,
    RankDied,
    Refused,
)
from laggard.rings.options import RingOptions

PLACE = Membership(0, 2, "127.0.0.1", 0)
LONG = 120.0
_opened: list[Link] = []  # by this test's nodes


def hello(challenge: Challenge, index: int, token: str = "", **changes: Any) -> Hello:
    values: dict[str, Any] = {
        "index": index,
        "launched": False,
        "nodes": 2,
        "node": f"n{index}",
        "boot_id": "b",
        "ranks": 1,
        "device": "cpu",
        "model": "CPU",
        "laggard": "1",
        "torch": "2.13",
        "nccl": "",
        "job": "",
        "options": RingOptions(),
        "nonce": "abc",
        "proof": "",
    }
    said = Hello(**{**values, **changes})
    return said if said.proof else structs.replace(said, proof=member_proof(token, challenge.nonce, said))


async def connect(port: int) -> Link:
    link = Link(*await asyncio.open_connection("127.0.0.1", port))
    _opened.append(link)
    return link


async def told(link: Link) -> Any:
    """What the coordinator says next."""
    return messages.read_from_coordinator(await link.read(LONG))


async def challenge_of(link: Link) -> Challenge:
    challenge = await told(link)
    assert isinstance(challenge, Challenge)
    return challenge


async def enter(port: int, index: int, token: str = "", **changes: Any) -> tuple[Link, Any]:
    """A node that connects and says who it is, with the coordinator's answer."""
    link = await connect(port)
    challenge = await challenge_of(link)
    said = hello(challenge, index, token, **changes)
    link.send(said)
    while isinstance(answer := await told(link), Beat):
        pass
    if isinstance(answer, Accepted):
        link.sign_as("member", session_key(token, challenge.nonce, said.nonce))
    return link, answer


Test = Callable[..., Coroutine[Any, Any, None]]


def with_coordinator(
    token: str = "", place: Membership = PLACE, own: str = ""
) -> Callable[[Test], Callable[..., None]]:
    """Runs a test with a coordinator and its port, beside what the test asks pytest for. `own`: the secret of the
    process beside the coordinator."""

    def decorated(test: Test) -> Callable[..., None]:
        async def run(**asked: Any) -> None:
            coordinator = Coordinator(place, tuple(token.split()), own)
            try:
                await test(coordinator, await coordinator.listen(), **asked)
            finally:
                await coordinator.end(0, "")
                while _opened:
                    await _opened.pop().close()

        @functools.wraps(test)
        def ran(**asked: Any) -> None:
            asyncio.run(run(**asked))

        whole = inspect.signature(test)
        ran.__signature__ = whole.replace(parameters=list(whole.parameters.values())[2:])  # type: ignore[attr-defined]
        return ran

    return decorated


async def leave(held: list[socket.socket]) -> None:
    """Closes connections that say nothing, once the coordinator has let in or closed each."""
    for each in held:
        each.setblocking(False)
        with contextlib.suppress(ConnectionError):
            await asyncio.get_running_loop().sock_recv(each, 1)
        each.close()


def soon() -> float:
    return time.monotonic() + LONG


@with_coordinator()
async def test_all_nodes_come_and_get_their_ranks(coordinator: Coordinator, port: int) -> None:
    await enter(port, 0, ranks=2)
    second, answer = await enter(port, 1, ranks=3)
    assert isinstance(answer, Accepted)
    await coordinator.gather(soon())
    assert coordinator.world == 5
    assert list(coordinator.ranks_of(1)) == [2, 3, 4]
    words = [await told(second) for _ in range(2)]
    assert Begin(2) in words and Beat() in words


@with_coordinator()
async def test_node_0_decides_also_where_another_comes_first(coordinator: Coordinator, port: int) -> None:
    early = asyncio.ensure_future(enter(port, 1, options=RingOptions(max_bytes=1 << 20)))
    await asyncio.sleep(0.1)
    _, answer = await enter(port, 0)
    assert isinstance(answer, Accepted)
    _, answer = await early
    assert isinstance(answer, Refused) and answer.text.endswith("of node 0: all nodes need the same")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"nodes": 3}, "was started for 3 nodes, the ring has 2"),
        ({"options": RingOptions(max_bytes=1 << 20)}, "the option max_bytes 1048576 in place of 67108864 of node 0"),
        ({"torch": "2.4"}, "torch 2.4 in place of 2.13"),
        ({"laggard": "2"}, "laggard 2 in place of 1"),
        ({"device": "cuda", "nccl": "2.27.5"}, "nccl 2.27.5 in place of none"),
        ({"job": "other"}, "job other in place of none"),
        ({"ranks": 0}, "it has 0 ranks"),
    ],
)
@with_coordinator()
async def test_a_node_that_does_not_fit_is_told_why(
    coordinator: Coordinator, port: int, changes: dict[str, Any], text: str
) -> None:
    await enter(port, 0)
    _, answer = await enter(port, 1, **changes)
    assert isinstance(answer, Refused) and text in answer.text
    with pytest.raises(NotAllCame, match="1 of 2 nodes came: node 1 did not .*was refused"):
        await coordinator.gather(time.monotonic())


@with_coordinator()
async def test_a_node_that_lies_about_its_rank_is_refused_and_the_right_one_is_not(
    coordinator: Coordinator, port: int
) -> None:
    await enter(port, 0)
    _, answer = await enter(port, 0, node="impostor")
    assert isinstance(answer, Refused) and "n0 is node 0 already" in answer.text
    for index in (2, -1):
        _, answer = await enter(port, index)
        assert isinstance(answer, Refused) and "--node-rank goes from 0 to 1" in answer.text
    await enter(port, 1)
    await coordinator.gather(soon())


@pytest.mark.parametrize("token", ["", "wrong", "secret "])
@with_coordinator("secret")
async def test_without_the_token_nobody_gets_in(coordinator: Coordinator, port: int, token: str) -> None:
    await enter(port, 0, "secret")
    _, answer = await enter(port, 1, token)
    assert isinstance(answer, Refused) and "another token" in answer.text
    _, answer = await enter(port, 1, "secret")
    assert isinstance(answer, Accepted)


@with_coordinator("new old")
async def test_while_a_token_is_replaced_either_is_let_in_and_speaks_with_its_own(
    coordinator: Coordinator, port: int
) -> None:
    for index, token in enumerate(("new", "old")):
        link, answer = await enter(port, index, token)
        assert isinstance(answer, Accepted), f"node {index} shows the {token} one"
        link.send(Beat())  # signed with a key of that token
    _, answer = await enter(port, 1, "older")
    assert isinstance(answer, Refused) and "another token" in answer.text
    await coordinator.gather(soon())
    assert len(coordinator.nodes) == 2


@with_coordinator("secret")
async def test_a_proof_is_for_one_node_and_one_connection_and_all_that_was_said(
    coordinator: Coordinator, port: int
) -> None:
    stale = hello(Challenge("another challenge", True), 1, "secret").proof
    _, answer = await enter(port, 1, "secret", proof=stale)
    assert isinstance(answer, Refused)
    link = await connect(port)
    challenge = await challenge_of(link)
    other = hello(challenge, 1, "secret", node="another name")
    link.send(structs.replace(other, node="n1"))
    assert isinstance(await told(link), Refused)


@pytest.mark.parametrize(
    "words", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100 + b"\n", b"a" * (messages.MAX_BYTES + 2)]
)
@with_coordinator()
async def test_who_says_something_else_is_left_out(coordinator: Coordinator, port: int, words: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await reader.readline()
    writer.write(words)
    writer.write_eof()
    assert await reader.read() == b""
    writer.close()
    await enter(port, 0)
    await enter(port, 1)
    await coordinator.gather(soon())


@with_coordinator()
async def test_a_node_speaks_for_its_own_ranks_alone(coordinator: Coordinator, port: int) -> None:
    await enter(port, 0)
    liar, _ = await enter(port, 1)
    await coordinator.gather(soon())
    liar.send(RankDied(0, "of another"))
    failure = await coordinator.next_report(soon())
    assert failure == Failure(1, "node 1 (n1) sent what it may not", True)


@with_coordinator()
async def test_a_node_that_goes_is_named(coordinator: Coordinator, port: int) -> None:
    await enter(port, 0)
    link, _ = await enter(port, 1)
    await coordinator.gather(soon())
    await link.close()
    assert await coordinator.next_report(soon()) == Failure(1, "node 1 (n1) closed its connection", True)


@with_coordinator()
async def test_a_node_that_says_nothing_is_named(
    coordinator: Coordinator, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a partition: no connection is closed."""
    monkeypatch.setattr(link_module, "SILENT_SECONDS", 0.2)
    first, _ = await enter(port, 0)
    beating = asyncio.ensure_future(_beat_often(first))
    silent, _ = await enter(port, 1)
    await coordinator.gather(soon())
    failure = await coordinator.next_report(soon())
    beating.cancel()
    assert isinstance(failure, Failure) and "has been silent for 0.2 s" in failure.text


async def _beat_often(link: Link) -> None:
    while True:
        link.send(Beat())
        await asyncio.sleep(0.01)


@pytest.mark.slow
@with_coordinator()
async def test_a_death_is_the_cause_and_its_neighbours_errors_are_not(coordinator: Coordinator, port: int) -> None:
    first, _ = await enter(port, 0)
    second, _ = await enter(port, 1)
    await coordinator.gather(soon())
    first.send(FromRank(0, Failed("connection closed by peer")))
    await asyncio.sleep(0)
    second.send(RankDied(1, "its process was ended by SIGKILL"))
    with pytest.raises(Exception, match="^node 1 .n1.: rank 1: its process was ended by SIGKILL$"):
        await coordinator.ask({0: Beat(), 1: Beat()}, messages.Done, LONG)  # type: ignore[dict-item]


def test_a_busy_port_is_told_before_anything_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = PLACE._replace(port=taken.getsockname()[1])
        with pytest.raises(UsageError, match=f"port {place.port} is in use on this machine"):
            asyncio.run(Coordinator(place, ()).listen())


def test_an_address_of_another_machine_is_told() -> None:
    with pytest.raises(UsageError, match="name an address of this machine"):
        asyncio.run(Coordinator(PLACE._replace(host="192.0.2.1"), ()).listen())


def test_messages_hold_no_field_that_nobody_knows() -> None:
    text = json.loads(messages.line(Beat()))
    with pytest.raises(ValueError, match="unknown field"):
        messages.read_from_member(json.dumps({**text, "command": "sh"}).encode())


@with_coordinator(place=PLACE._replace(nodes=4, names=("a", "b", "c", "d")))
async def test_a_gang_begins_without_who_does_not_come_and_refuses_who_comes_late(
    coordinator: Coordinator, port: int
) -> None:
    await enter(port, 0, nodes=4, node="a")
    second, _ = await enter(port, 2, nodes=4, ranks=2, node="c")
    await enter(port, 3, "wrong", nodes=4, node="d")
    await coordinator.gather(time.monotonic() + 0.05, fewest=2)
    assert (coordinator.world, list(coordinator.ranks_of(2)), coordinator.index_of(2)) == (3, [1, 2], 2)
    assert coordinator.absent[:2] == ("node 1 (b)", "node 3 (d)")
    assert "was refused: it has another token" in coordinator.absent[2]
    _, answer = await enter(port, 1, nodes=4, node="b")
    assert isinstance(answer, Refused) and "too late" in answer.text
    await coordinator.end(0, "", {2: NodeShare((), ("node 1 (b) did not come",), "", 2)})
    end = None
    while not isinstance(end, End):
        end = await told(second)
    assert end.share is not None and end.share.others == ("node 1 (b) did not come",)


@with_coordinator(place=PLACE._replace(names=("n1", "n2")))
async def test_a_gang_of_one_does_not_begin(coordinator: Coordinator, port: int) -> None:
    await enter(port, 0, node="n1")
    with pytest.raises(NotAllCame, match=r"1 of 2 nodes came: node 1 \(n2\) did not"):
        await coordinator.gather(time.monotonic() + 0.05, fewest=2)


@with_coordinator(own="own secret")
async def test_the_leading_node_s_own_part_alone_takes_its_place(coordinator: Coordinator, port: int) -> None:
    """Who knows the token, or whoever comes where there is none, is not the process beside the coordinator."""
    _, answer = await enter(port, 0)
    assert isinstance(answer, Refused)
    _, answer = await enter(port, 0, "own secret")
    assert isinstance(answer, Accepted)


@with_coordinator(place=PLACE._replace(names=("a", "b")))
async def test_a_node_under_another_s_name_is_refused_where_a_launcher_tells_the_names(
    coordinator: Coordinator, port: int
) -> None:
    await enter(port, 0, node="a")
    _, answer = await enter(port, 1, node="a")
    assert isinstance(answer, Refused) and answer.text == "it says that it is a, and node 1 is b"


@pytest.mark.parametrize("how", ["unsigned", "again", "altered", "turned back"])
@with_coordinator("secret")
async def test_a_line_that_a_node_did_not_say_accuses_nobody(coordinator: Coordinator, port: int, how: str) -> None:
    """Somebody between the two is no fault of the node's."""
    await enter(port, 0, "secret")
    link, _ = await enter(port, 1, "secret")
    await coordinator.gather(soon())
    key, line = link._key, messages.line(FromRank(1, messages.Done()))
    good = line_proof(key, "member", 0, line) + b" " + line
    forged = {
        "unsigned": line,
        "again": good + good,
        "altered": good.replace(b'"rank":1', b'"rank":0'),
        "turned back": line_proof(key, "coordinator", 0, line) + b" " + line,
    }
    link._writer.write(forged[how])
    if how == "again":
        assert isinstance(await coordinator.next_report(soon()), FromRank)
    failure = await coordinator.next_report(soon())
    assert isinstance(failure, Failure) and failure.left and "did not say" in failure.text


@with_coordinator("secret")
async def test_a_handshake_that_was_recorded_lets_nobody_in(coordinator: Coordinator, port: int) -> None:
    await enter(port, 0, "secret")
    link = await connect(port)
    challenge = await challenge_of(link)
    recorded = hello(challenge, 1, "secret")
    await link.close()
    again = await connect(port)
    await again.read(LONG)
    again.send(recorded)
    assert isinstance(await told(again), Refused)


@with_coordinator("secret")
async def test_a_flood_of_connections_that_say_nothing_keeps_no_node_out(coordinator: Coordinator, port: int) -> None:
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(400)]
    await enter(port, 0, "secret")
    held += [await asyncio.open_connection("127.0.0.1", port) for _ in range(400)]
    _, answer = await enter(port, 1, "secret")
    assert isinstance(answer, Accepted)
    await coordinator.gather(soon())
    for _, writer in held:
        writer.close()


@with_coordinator("secret")
async def test_a_crowd_that_waits_to_be_accepted_keeps_no_node_out(coordinator: Coordinator, port: int) -> None:
    """A node of the same machine, so that its address does not tell it from them."""
    link = await connect(port)
    held = [socket.create_connection(("127.0.0.1", port)) for _ in range(900)]  # the coordinator does not run
    challenge = await challenge_of(link)
    link.send(hello(challenge, 0, "secret"))
    assert isinstance(await told(link), Accepted)
    await leave(held)


@with_coordinator("secret")
async def test_a_flood_from_elsewhere_closes_no_node_that_is_slow_to_prove_itself(
    coordinator: Coordinator, port: int
) -> None:
    link = Link(*await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.5.1", 0)))
    _opened.append(link)
    challenge = await challenge_of(link)
    held = []
    for _ in range(400):
        held.append(socket.create_connection(("127.0.0.1", port)))
        await asyncio.sleep(0)
    link.send(hello(challenge, 0, "secret"))
    assert isinstance(await told(link), Accepted)
    await leave(held)


@with_coordinator()
async def test_the_first_nodes_wait_for_a_leading_one_that_is_slow(
    coordinator: Coordinator, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They hear meanwhile that it is there, however long it loads torch."""
    monkeypatch.setattr(link_module, "SILENT_SECONDS", 1.5)
    early = asyncio.ensure_future(_enter_soon(port))
    await asyncio.sleep(3.0)
    assert not early.done() and not coordinator.nodes
    await enter(port, 0)
    assert isinstance(await early, Accepted)


async def _enter_soon(port: int) -> Any:
    """As a member does, which gives up after SILENT_SECONDS without a word."""
    link = await connect(port)
    challenge = messages.read_from_coordinator(await link.read())
    assert isinstance(challenge, Challenge)
    link.send(hello(challenge, 1))
    while isinstance(answer := messages.read_from_coordinator(await link.read()), Beat):
        pass
    return answer


@with_coordinator()
async def test_a_node_that_answers_twice_is_heard_once(coordinator: Coordinator, port: int) -> None:
    first, _ = await enter(port, 0)
    second, _ = await enter(port, 1)
    await coordinator.gather(soon())
    first.send(FromRank(0, messages.Computed(1.0, 1, 0)))
    first.send(FromRank(0, messages.Computed(2.0, 1, 0)))
    second.send(FromRank(1, messages.Computed(3.0, 1, 0)))
    compute = messages.Compute(0.1)
    answers = await coordinator.ask({0: compute, 1: compute}, messages.Computed, LONG)
    assert [answers[rank].per_second for rank in (0, 1)] == [1.0, 3.0]


@pytest.mark.parametrize(("least", "accused"), [(60.0, False), (0.1, True)])
@with_coordinator()
async def test_a_node_is_accused_of_silence_only_where_nothing_has_moved_for_long(
    coordinator: Coordinator, port: int, least: float, accused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ring's time may be over a moment after the question."""
    monkeypatch.setattr(coordinator_module, "MIN_SILENCE_SECONDS", least)
    first, _ = await enter(port, 0)
    await enter(port, 1)
    await coordinator.gather(soon())
    first.send(FromRank(0, messages.Done()))
    with pytest.raises(RingFailed) as failed:
        await coordinator.ask({0: messages.Observe(), 1: messages.Observe()}, messages.Done, 0.5)
    (failure,) = failed.value.failures
    assert (failure.node, failure.silent, failure.certain) == (1, accused, False)
