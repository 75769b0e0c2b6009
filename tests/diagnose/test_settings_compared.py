"""What `laggard diagnose` makes of hosts and ranks of one job that say different things of themselves."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.diagnosed import diagnose_text

MEETS = "Bootstrap : Using"
HOSTS: Sequence[str] = ("n1", "n2", "n3", "n4")


def nccl(text: str, odd: Mapping[str, str], hosts: Sequence[str] = HOSTS, ranks: int = 1) -> str:
    """What each rank of each host logs: `text`, or that of its host in `odd`; HOST and NUMBER are its own."""
    lines = []
    for place, host in enumerate(hosts):
        for rank in range(ranks):
            said = odd.get(host, text).replace("HOST", host).replace("NUMBER", str(11 + place * ranks + rank))
            lines.append(f"{host}:{4700 + 31 * rank + place}:{4800 + 31 * rank + place} [{rank}] NCCL INFO {said}\n")
    return "".join(lines)


DIFFERENT = {
    "an interface of one link": (
        nccl(f"{MEETS} eth0:192.0.2.NUMBER<0>", {"n2": f"{MEETS} ib0:fe80::2:aNUMBER%ib0<0>"}, HOSTS[:2]),
        "JOB_RENDEZVOUS_FAILED",
        "critical",
        "ib0:fe80::2:a12%ib0<0> on n2",
    ),
    "an interface of four": (
        nccl("Bootstrap : Using eth0:192.0.2.NUMBER<0>", {"n3": "Bootstrap : Using docker0:172.17.0.1<0>"}),
        "JOB_RENDEZVOUS_FAILED",
        "warning",
        "docker0:172.17.0.1<0> on n3",
    ),
    "another number of the same interface": (
        nccl(f"{MEETS} ens1f0:192.0.2.NUMBER<0>", {"n2": f"{MEETS} ens1f1:192.0.2.NUMBER<0>"}, HOSTS[:2], 2),
        "JOB_RENDEZVOUS_FAILED",
        "warning",
        "ens1f1",
    ),
    "a variable": (
        nccl("NCCL_IB_HCA set by environment to mlx5_0,mlx5_1", {"n4": "NCCL_IB_HCA set by environment to mlx5_bond"}),
        "RDMA_DEVICE_MISSING",
        "warning",
        "mlx5_bond on n4",
    ),
    "the number of adapters": (
        nccl("NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB", {"n2": "NET/IB : Using [0]mlx5_0:1/IB"}, HOSTS[:2]),
        "RDMA_DEVICE_MISSING",
        "warning",
        "[0]mlx5_0:1/IB on n2",
    ),
    "the network": (
        nccl("Using network IBext_v8", {"n2": "Using network Socket"}, HOSTS, 2),
        "FLEET_OUTLIER",
        "warning",
        "network Socket on n2",
    ),
    "a driver's version, said by ranks": (
        "".join(f"[rank{it}]: CUDA driver version: {'535.161.08' if it == 5 else '550.54.15'}\n" for it in range(8)),
        "FLEET_OUTLIER",
        "warning",
        "535.161.08 on rank 5",
    ),
    "the size of the world": (
        "".join(f"[rank{rank}]: initialised, world size: {4 if rank == 2 else 8}\n" for rank in range(4)),
        "JOB_RENDEZVOUS_FAILED",
        "warning",
        "4 on rank 2",
    ),
}  # fmt: skip

ALIKE = {
    "addresses": nccl("Bootstrap : Using eth0:192.0.2.NUMBER<0>", {}),
    "addresses of two": nccl("Bootstrap : Using eth0:192.0.2.NUMBER<0>", {}, HOSTS[:2], 8),
    "what differs for each": nccl("comm 0x55NUMBERab rank NUMBER nranks 4 cudaDev 0 busId NUMBER000 - Init START", {}),
    "names": nccl("NET/IB : Using [0]mlx5_0:1/IB; OOB eth0:HOST<0>", {}),
    "channels": nccl("Trees [0] NUMBER/-1/-1->0->-1 [1] -1/-1/-1->NUMBER->0", {}, HOSTS[:2]),
    "files of each rank": "".join(f"[rank{it}]: shard using: /data/part-{'abcd'[it]}.bin\n" for it in range(4)),
    "one that says more": nccl("NCCL version 2.21.5+cuda12.4", {}, HOSTS[:1]) + nccl("Using network IB", {}),
    "devices of ranks": "".join(f"[rank{rank}]: using device: cuda:{rank}\n" for rank in range(8)),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_difference_is_told_with_both_values_and_both_places(name: str) -> None:
    text, code, severity, words = DIFFERENT[name]
    found = [it for it in diagnose_text(text + "[rank0]: step 1 loss 2.1\n" * 3).findings if it.code == code]
    assert [it.severity.value for it in found] == [severity]
    assert words in found[0].summary and (" others" in found[0].summary or " on n1" in found[0].summary)
    assert found[0].evidence["line"] in text


@pytest.mark.parametrize("name", ALIKE)
def test_what_differs_by_design_is_nothing(name: str) -> None:
    found = diagnose_text(ALIKE[name] + "[rank0]: step 1 loss 2.1\n" * 3).findings
    assert not [it for it in found if "differ" in it.summary]


@given(
    st.sampled_from([text for text, *_ in DIFFERENT.values()]),
    st.integers(0, 600),
    st.text("NCL INFO:[]0 =Using\n", max_size=80),
)
def test_a_text_that_is_cut_or_strange_is_read(text: str, end: int, rest: str) -> None:
    for each in diagnose_text(text[:end] + rest).findings:
        assert each.summary and each.fix.text
