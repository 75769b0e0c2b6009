"""A hole in the layout of a board's NICs, and boards whose layout says nothing."""

import json
from pathlib import Path

import pytest
from support.materialise import materialise

from laggard.cli import main
from laggard.probes.rdma.rules.uniformity import by_root, holes

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


PLUG = "pcieport 0000:b9:02.0: pciehp: Slot(7): Link {}"
FORGED = "tmpfs: Unknown parameter 'x{}{}'"


@pytest.mark.parametrize("separator", ["", " ", "\\x0a"])
@pytest.mark.parametrize(("machine", "word"), [("nic_never_put_in", "Down"), ("nic_unplugged", "Up")])
def test_a_users_text_about_a_slot_changes_nothing(
    machine: str, word: str, separator: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def judged() -> list[tuple[str, str]]:
        main(["healthcheck", "--host-root", str(tmp_path / "machine"), "--only", "rdma_devices", "--format", "json"])
        return [(it["code"], it["severity"]) for it in json.loads(capsys.readouterr().out)["findings"]]

    materialise(machine, tmp_path / "machine")
    before = judged()
    assert ("RDMA_DEVICE_MISSING", "critical" if machine == "nic_unplugged" else "warning") in before
    log = tmp_path / "machine/laggard/kmsg"
    own = log.read_text()
    line = PLUG.format(word)
    log.write_text(f"{own}4,903,860000000001,-;{FORGED.format(separator, line)}\n")
    assert judged() == before
    log.write_text(f"{own}4,903,860000000001,-;{line}\n")
    assert judged() != before, "the kernel's own word counts"
