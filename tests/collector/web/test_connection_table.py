"""Who makes room among the collector's connections."""

from __future__ import annotations

import dataclasses
import time

import pytest

from laggard.collector.web.connections import MAX_WAITING, ConnectionTable, kept_places, network_of


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


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.1.2.3", "10.1.2.0/24"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.1.2.3", "10.1.2.0/24"),
        ("", "an unknown address"),
    ],
)
def test_a_network_is_told(address: str, network: str) -> None:
    assert network_of(address) == network


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
