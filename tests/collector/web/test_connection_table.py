"""Connections are taken and bounded: by client, by network, and by what the machine has."""

import asyncio
import contextlib
import dataclasses
import socket
import time
from collections.abc import Iterator

import h11
import pytest

from laggard.collector.web import acceptor as module
from laggard.collector.web.acceptor import Acceptor
from laggard.collector.web.connections import MAX_WAITING, ConnectionTable, LengthsOnly, kept_places
from laggard.kit.shares import is_of_own_machine


@dataclasses.dataclass(eq=False)
class Client:
    """A connection; with `waits_since` its client has sent no whole request since then."""

    address: str
    waits_since: float | None = None
    unsent: int = 0
    aborted: bool = False
    sent: bool = False
    asked_again: int = 0

    def ask_again(self) -> None:
        self.asked_again += 1

    def has_sent(self) -> bool:
        return self.sent

    def abort(self) -> None:
        self.aborted = True


def served(address: str, unsent: int = 0) -> Client:
    return Client(address, None, unsent)


def test_the_one_that_has_taken_nothing_for_the_longest_makes_room() -> None:
    table = ConnectionTable(3, 3)
    slow = [served("10.0.0.1", 5), served("10.0.0.1", 5), served("10.0.0.2", 5)]
    for each in slow:
        assert table.admit(each)
        table.note_unsent(each)
    assert table.admit(served("10.0.0.3"))
    assert [each.aborted for each in slow] == [True, False, False]
    assert table.ended == {"no_request": 0, "not_taken": 1, "refused": 0} and table.turned_away == 1


def test_one_whose_request_is_on_its_way_does_not_make_room() -> None:
    table = ConnectionTable(2, 2)
    early, silent = Client("10.0.0.1", 1.0, sent=True), Client("10.0.0.1", 2.0)
    assert table.admit(early) and table.admit(silent)
    assert table.admit(Client("10.0.0.2", 3.0))
    assert silent.aborted and not early.aborted


def test_the_address_that_has_the_most_makes_room_first() -> None:
    table = ConnectionTable(4, 4)
    gate = Client("10.0.0.9", waits_since=0.0)
    crowd = [served("10.0.0.1", 5) for _ in range(3)]
    for each in (gate, *crowd):
        assert table.admit(each)
        table.note_unsent(each)
    assert table.admit(Client("10.0.0.1", waits_since=time.monotonic()))
    assert not gate.aborted and crowd[0].aborted


def test_answers_that_clients_do_not_take_are_bounded_together() -> None:
    table = ConnectionTable(100, 100, max_unsent_bytes=100)
    slow = [served("10.0.0.1", 40) for _ in range(5)]
    for each in slow:
        assert table.admit(each)
        table.note_unsent(each)
        assert sum(it.unsent for it in slow if not it.aborted and table._untaken.get(it)) <= 100
    assert [each.aborted for each in slow] == [True, True, True, False, False]
    alone = served("10.0.0.2", 1000)
    assert table.admit(alone)
    table.note_unsent(alone)
    assert not alone.aborted, "one answer of any size can be sent"
    alone.unsent = 0
    table.note_unsent(alone)
    assert not table._untaken


def test_one_that_was_closed_is_not_noted_again() -> None:
    table = ConnectionTable(100, 100)
    gone = served("10.0.0.1", 40)
    table.note_unsent(gone)
    assert not table._untaken


def test_where_all_are_answered_a_new_one_gets_a_kept_place_until_there_is_another() -> None:
    table = ConnectionTable(8, 8)
    busy = [served("10.0.0.1") for _ in range(8)]
    kept = [served("10.0.0.1") for _ in range(kept_places(8))]
    for each in (*busy, *kept):
        assert table.admit(each)
    assert not any(map(table.has_kept_place, busy)) and all(map(table.has_kept_place, kept))
    late = served("10.0.0.1")
    assert not table.admit(late) and table.ended["refused"] == 0
    table.refuse(late)
    assert table.ended["refused"] == 1
    table.remove(busy[0])
    assert not table.has_kept_place(kept[0]), "it has an ordinary one now"
    assert table.has_kept_place(kept[1])


def test_so_many_wait_for_a_place_and_no_more() -> None:
    table = ConnectionTable(1, 1)
    crowd = [served("10.0.1.1") for _ in range(MAX_WAITING - 1)]
    for each in (served("10.0.1.2"), *crowd):
        table.wait(each)
    gate = served("10.0.1.3")
    table.wait(gate)
    assert crowd[0].aborted and not gate.aborted and table.ended["refused"] == 1
    table.remove(crowd[1])
    table.wait(served("10.0.1.3"))
    assert not crowd[2].aborted


def test_who_has_waited_for_a_place_takes_none_of_a_later_one() -> None:
    table = ConnectionTable(1, 1)
    assert table.admit(Client("10.0.0.1", waits_since=5.0))
    early = [Client("10.0.0.1", waits_since=4.0 - number) for number in range(kept_places(1) + 1)]
    assert [table.admit(each) for each in early] == [True] * kept_places(1) + [False]
    assert table.admit(Client("10.0.0.1", waits_since=6.0))


def test_a_place_goes_to_who_has_the_fewest_and_waits() -> None:
    table = ConnectionTable(4, 4)
    busy = [served("10.0.0.1") for _ in range(4)]
    kept = [served("10.0.0.1") for _ in range(kept_places(4))]
    assert all(map(table.admit, busy)) and all(map(table.admit, kept)) and all(map(table.is_crowded, busy))
    more, gate = served("10.0.0.1"), served("10.0.0.2")
    for each in (more, gate):
        assert not table.admit(each)
        table.wait(each)
    table.hand_over()
    assert not gate.asked_again, "there is no place yet"
    table.remove(busy[0])
    assert not table.is_crowded(busy[1])
    table.hand_over()
    assert (more.asked_again, gate.asked_again) == (0, 1)
    assert table.admit(gate) and table.is_crowded(busy[1])


MAX_PENDING = 64


class Connections(asyncio.Protocol):
    """Stands in for the collector's connections: whose got further, in order."""

    def __init__(self, came: list[str]) -> None:
        self._came = came

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._came.append(transport.get_extra_info("peername")[0])
        transport.abort()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as made:
        yield made


def accepted(listener: socket.socket, addresses: list[str]) -> tuple[list[str], int]:
    """Whose connections got further, in order, and how many were closed, where all are there before the first is
    taken."""
    came: list[str] = []
    refused: list[int] = []

    async def serve() -> None:
        acceptor = Acceptor(
            listener, lambda: Connections(came), lambda count, address: refused.append(count), MAX_PENDING
        )
        acceptor.start()
        while len(came) + sum(refused) < len(addresses):
            await asyncio.sleep(0.01)
        acceptor.stop()
        await asyncio.sleep(0.1)  # the connections end

    with contextlib.ExitStack() as stack:
        for address in addresses:
            stack.enter_context(socket.create_connection(listener.getsockname(), 60, (address, 0)))
        asyncio.run(asyncio.wait_for(serve(), 120))
    return came, sum(refused)


def test_who_connected_the_least_gets_further_first(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TAKE_SECONDS", 60.0)
    monkeypatch.setattr(module, "_BURST_SECONDS", -1.0)
    monkeypatch.setattr(module, "is_of_own_machine", lambda *_: False)  # they stand for other machines
    flood = ["127.0.0.2"] * (MAX_PENDING + 60) + ["127.0.0.3"] * 30
    came, refused = accepted(listener, [*flood, "127.0.0.9"])
    assert came.index("127.0.0.9") <= 2, "it came last, and goes before all but the first of the others"
    assert (len(came), refused) == (MAX_PENDING, 91), "so many wait, and no more"
    assert came.count("127.0.0.3") == 30, "those who connected the most go"


def test_a_user_of_the_machine_with_many_addresses_comes_after_others(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With each of which the user has connected once, and so less than a scraper has that asks every second."""
    monkeypatch.setattr(module, "_TAKE_SECONDS", 60.0)
    monkeypatch.setattr(module, "_BURST_SECONDS", -1.0)
    monkeypatch.setattr(module, "MAX_OF_OWN_MACHINE", 8)
    scraper = "127.0.0.9"
    monkeypatch.setattr(
        module, "is_of_own_machine", lambda to, address: address != scraper and is_of_own_machine(to, address)
    )
    flood = [f"127.9.{number // 250}.{1 + number % 250}" for number in range(4 * MAX_PENDING)]
    came, refused = accepted(listener, [scraper] * 3 + flood + [scraper])
    assert (len(came), refused) == (MAX_PENDING, 3 * MAX_PENDING + 4)
    assert came[: 9 + 4].count(scraper) == 4, "none was closed, and nine of the machine's own at most came before"


def test_of_a_burst_none_is_closed(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BURST_SECONDS", 60.0)
    came, refused = accepted(listener, ["127.0.0.2"] * (4 * MAX_PENDING))
    assert (len(came), refused) == (4 * MAX_PENDING, 0)


def test_a_body_in_chunks_is_refused_before_it_is_read() -> None:
    """Each chunk is a step of the parser: 16 KiB of them, a byte each, stopped the collector for 40 ms."""
    connection = LengthsOnly()
    connection.receive_data(b"POST /api/v1/rings/due HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
    connection.receive_data(b"1\r\nx\r\n" * 2000)
    with pytest.raises(h11.RemoteProtocolError):
        connection.next_event()
    assert connection.refusal().startswith(b"HTTP/1.1 411 Length Required\r\n")


def test_what_is_no_request_is_told_so() -> None:
    connection = LengthsOnly()
    connection.receive_data(b"\x16\x03\x01\r\n\r\n")
    with pytest.raises(h11.RemoteProtocolError):
        connection.next_event()
    assert connection.refusal().startswith(b"HTTP/1.1 400 Bad Request\r\n")
