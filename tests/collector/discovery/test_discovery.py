"""Agents found by name and by file: what is taken, what is refused and named, and how long the last answer holds."""

import json
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.agents import put
from support.rows import rows

from laggard.collector.discovery import MAX_FILE_BYTES, Answer, Discovery, DnsName, Source, TargetFiles, Unanswered
from laggard.collector.settings import load_settings
from laggard.collector.targets import Target, parse_targets


def urls(targets: Sequence[Target]) -> list[str]:
    return [target.url for target in targets]


def write(path: Path, groups: object) -> Path:
    return put(path, groups if isinstance(groups, str) else json.dumps(groups))


class Told:
    """A place that answers, or fails, as the test says."""

    def __init__(self, *hosts: str) -> None:
        self.hosts: tuple[str, ...] | None = hosts

    def read(self) -> Answer:
        if self.hosts is None:
            raise Unanswered("the name server is away")
        return Answer(parse_targets(self.hosts))


def test_a_name_is_the_addresses_that_the_machine_resolves_it_to() -> None:
    addresses = {found[4][0] for found in socket.getaddrinfo("localhost", 1, socket.AF_INET)}
    answer = DnsName("localhost:19400").read()
    assert urls(answer.targets) == [f"http://{address}:19400" for address in sorted(addresses)]  # type: ignore[type-var]
    assert urls(DnsName("https://localhost").read().targets)[0] == "https://127.0.0.1:19400"


def test_an_address_is_a_name_too() -> None:
    assert urls(DnsName("[::1]:80").read().targets) == ["http://[::1]:80"]


def test_a_name_that_cannot_be_one_is_told_of() -> None:
    with pytest.raises(Unanswered, match="cannot be resolved"):
        DnsName("x" * 70 + ".example").read()


@rows("collector/target_files")
def test_files_are_those_of_prometheus(name: str, text: str, tmp_path: Path) -> None:
    answer = TargetFiles(str(write(tmp_path / name, text))).read()
    assert urls(answer.targets) == ["http://n1:19400", "http://n2:99", "https://n3:19400"] and not answer.note


def test_a_file_is_read_again_when_it_changes_and_only_then(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", [{"targets": ["n1", "n2"]}])
    files = TargetFiles(str(path))
    assert urls(files.read().targets) == ["http://n1:19400", "http://n2:19400"]
    before = files.read().targets
    assert files.read().targets == before
    write(path, [{"targets": ["n2", "n3"]}])
    assert urls(files.read().targets) == ["http://n2:19400", "http://n3:19400"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is not used"),
        ('{"targets": ["n1"]}', "is not used"),
        ('["n1"]', "is not used"),
        ('[{"targets": "n1"}]', "is not used"),
        ('[{"targets": [1]}]', "is not used"),
        ("[" * 1_500, "is not used"),
        ("x" * (MAX_FILE_BYTES + 1), "longer than"),
    ],
    ids=["broken", "no list", "no group", "no targets", "no text", "nested", "long"],
)
@pytest.mark.parametrize("name", ["t.json", "t.yml"])
def test_what_is_no_list_of_targets_is_named_and_the_last_list_holds(
    text: str, why: str, name: str, tmp_path: Path
) -> None:
    path = write(tmp_path / name, [{"targets": ["n1"]}])
    files = TargetFiles(str(path))
    files.read()
    write(path, text)
    answer = files.read()
    assert urls(answer.targets) == ["http://n1:19400"]
    assert str(path) in answer.note and why in answer.note and len(answer.note) < 500 and "\n" not in answer.note
    write(path, [])
    assert files.read() == Answer()


def test_one_wrong_target_costs_no_other(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", [{"targets": ["n1", "n2/x", "a b", "n3"]}])
    answer = TargetFiles(str(path)).read()
    assert urls(answer.targets) == ["http://n1:19400", "http://n3:19400"]
    assert "2 targets left out: cannot read target 'http://n2/x'" in answer.note


def test_a_pattern_stands_for_more_files_of_which_some_may_go(tmp_path: Path) -> None:
    for rack in ("a", "b"):
        write(tmp_path / f"rack-{rack}.json", [{"targets": [f"n{rack}"]}])
    files = TargetFiles(str(tmp_path / "rack-*.json"))
    assert urls(files.read().targets) == ["http://na:19400", "http://nb:19400"]
    (tmp_path / "rack-a.json").unlink()
    assert urls(files.read().targets) == ["http://nb:19400"]
    (tmp_path / "rack-b.json").unlink()
    with pytest.raises(Unanswered, match="no such file"):
        files.read()


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.json").mkdir()
    assert "t.json cannot be read: is a directory" in TargetFiles(str(tmp_path / "t.json")).read().note


def test_the_last_answer_holds_while_a_place_does_not_answer_and_not_for_ever() -> None:
    place = Told("n1")
    source = Source(place, keep_seconds=900.0)
    source.look(0.0)
    place.hosts = None
    source.look(600.0)
    assert urls(source.answer.targets) == ["http://n1:19400"]
    assert source.answer.note == "the name server is away; what it said 600 s ago holds"
    source.look(901.0)
    assert not source.answer.targets and "holds no longer" in source.answer.note
    place.hosts = ("n2",)
    source.look(902.0)
    assert urls(source.answer.targets) == ["http://n2:19400"] and not source.answer.note


def test_a_place_that_never_answered_tells_of_none() -> None:
    place = Told()
    place.hosts = None
    source = Source(place, 900.0)
    source.look(5.0)
    assert source.answer == Answer((), "the name server is away")


def test_each_agent_is_scraped_once_and_no_more_of_them_than_are_allowed() -> None:
    names, files = Told("n1", "n2"), Told("n3", "n4")
    discovery = Discovery(parse_targets(["n1", "n0"]), [names, files], max_targets=4)
    assert urls(discovery.found.targets) == ["http://n1:19400", "http://n0:19400"]
    discovery.look(0.0)
    assert urls(discovery.found.targets) == [f"http://n{number}:19400" for number in (1, 0, 2, 3)]
    (note,) = discovery.found.notes
    assert note.text == "looking for agents: 5 agents are known: only 4 are scraped (max_targets)"
    names.hosts, files.hosts = ("n4",), None
    discovery.look(1.0)
    assert urls(discovery.found.targets) == [f"http://n{number}:19400" for number in (1, 0, 4, 3)]


def test_without_a_place_to_look_nothing_waits() -> None:
    discovery = Discovery(parse_targets(["n1"]))
    discovery.start(1.0)
    discovery.wait(300.0)
    assert urls(discovery.found.targets) == ["http://n1:19400"] and not discovery.found.notes


def test_where_agents_are_looked_for_this_machine_is_not_scraped_unless_it_is_listed(tmp_path: Path) -> None:
    file = tmp_path / "collector.yaml"
    file.write_text("target_names: [agents]\n")
    assert load_settings(str(file), (), None, None).targets == ()
    file.write_text("target_files: [/etc/agents.json]\ntargets: ['127.0.0.1:19400']\n")
    assert load_settings(str(file), (), None, None).targets == ("127.0.0.1:19400",)
