"""The bytes that the network carried for a job's ranks on one node, as its agent saw it."""

from __future__ import annotations

import msgspec


class JobTraffic(msgspec.Struct, frozen=True, omit_defaults=True):
    """Bytes in the last `seconds`, sent and received. `tcp_peer_bytes`: over TCP with the job's other nodes (`peers`,
    addresses); `tcp_other_bytes`: over TCP with others; `rdma_bytes`: of all RDMA devices of the machine, None where
    none is up; `collective_bytes`: that the job's ranks here passed to collectives. `unknown`: why it cannot be told
    which transport the job uses."""

    seconds: float
    tcp_peer_bytes: int
    tcp_other_bytes: int
    rdma_bytes: int | None
    collective_bytes: int
    peers: tuple[str, ...] = ()
    job_id: str = ""
    owner: int = 0
    unknown: str = ""
