"""A hole in the layout of a board's NICs, and boards whose layout says nothing."""

from __future__ import annotations

from laggard.probes.rdma.rules.nic_beside_gpu import by_root, holes

SWITCHES = tuple(f"0000:{bus:02x}:00.0" for bus in range(0x10, 0x90, 0x10))


def behind(switch: str, slot: int) -> tuple[str, ...]:
    return "0000:00:01.0", switch, f"{switch[:-4]}{slot:02x}.0", f"{switch[:6]}{slot}:00.0"


GPUS = tuple(behind(switch, 1) for switch in SWITCHES)
NICS = tuple(behind(switch, 2) for switch in SWITCHES)


def test_a_place_with_fewer_nics_than_the_others_is_a_hole() -> None:
    (hole,) = holes(GPUS, NICS[:3] + NICS[4:])
    assert (hole.bridge, hole.gpus, hole.nics, hole.usual) == (SWITCHES[3], (GPUS[3][-1],), 0, 1)


def test_two_nics_beside_each_gpu_and_one_beside_one() -> None:
    second = tuple(behind(switch, 3) for switch in SWITCHES)
    (hole,) = holes(GPUS, NICS + second[1:])
    assert (hole.bridge, hole.nics, hole.usual) == (SWITCHES[0], 1, 2)


def test_a_nic_for_two_gpus() -> None:
    pairs = GPUS + tuple(behind(switch, 4) for switch in SWITCHES)
    assert holes(pairs, NICS) == ()
    (hole,) = holes(pairs, NICS[1:])
    assert len(hole.gpus) == 2


def test_a_layout_that_is_not_plain_has_no_hole() -> None:
    assert holes(GPUS, NICS) == ()
    assert holes(GPUS, ()) == ()
    assert holes((), NICS) == ()
    assert holes(GPUS, NICS[::2]) == (), "every other GPU has one, by design"
    assert holes(GPUS[:2], NICS[:1]) == (), "of two, neither is the usual one"
    assert holes(GPUS[:6], NICS[2:]) != () and holes(GPUS[:7], (*NICS[:3], NICS[7])) == ()


def test_a_host_bridge_has_the_buses_up_to_the_next_one() -> None:
    roots = {"0000": (0x15, 0x97, 0x37)}
    assert by_root("0000:3b:00.0", roots) == by_root("0000:37:01.0", roots) == ("0000", 0x37)
    assert by_root("0000:14:00.0", roots) is None and by_root("0001:3b:00.0", roots) is None
