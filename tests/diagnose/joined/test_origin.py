"""Ranks and hosts by the names of files and folders."""

import pytest

from laggard.diagnose.joined.exhibit import Origin, origins


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("rank3.log", Origin(3)),
        ("logs/rank_12.txt", Origin(12)),
        ("host-a/logs/none_x/attempt_1/3/stderr.log", Origin(None, 3, "host-a", 1)),
        ("node-2/local_rank_1.log", Origin(None, 1, "node-2")),
        ("dmesg-n17.txt", Origin(host="n17")),
        ("kernel/gpu-b09.log", Origin()),
        ("worker12/rank5.out", Origin(5, None, "worker12")),
        ("hostfile", Origin()),
        ("nodeinfo.txt", Origin()),
        ("frankfurt/3.log", Origin()),
    ],
)
def test_a_path_tells_rank_and_host(path: str, expected: Origin) -> None:
    assert origins([path.split("/")]) == [expected]


def test_files_that_count_from_zero_are_of_ranks() -> None:
    found = origins([("out", f"job.{number}.log") for number in range(4)])
    assert [each.rank for each in found] == [0, 1, 2, 3]
    assert [each.rank for each in origins([("job.1.log",), ("job.7.log",)])] == [None, None]


def test_folders_with_the_same_files_are_hosts() -> None:
    found = origins([("alpha", "dmesg"), ("beta", "dmesg"), ("logs", "x"), ("kernel", "x")])
    assert [each.host for each in found] == ["alpha", "beta", None, None]
