"""The kernel's answers about TCP connections: whatever it sends is parsed or left out, and real ones are right."""

import ipaddress
import os
import socket
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.agent.sock_diag import (
    Reply,
    TcpSocket,
    listening_request,
    listening_sockets,
    parse_listening,
    parse_reply,
    plain_address,
    request,
)
from laggard.agent.traffic.sockets import SocketsUnknown, read_variables, socket_inodes, tcp_sockets

PORTS = st.integers(0, 65535)
BYTES = st.integers(0, 2**64 - 1)
V4 = st.tuples(st.ip_addresses(v=4).map(str), st.ip_addresses(v=4).map(str))
V6 = st.tuples(*[st.ip_addresses(v=6).map(lambda it: plain_address(str(it)))] * 2).filter(
    lambda pair: all(":" in address for address in pair)
)


@st.composite
def sockets(draw: st.DrawFn) -> TcpSocket:
    local, remote = draw(st.one_of(V4, V6))
    numbers = draw(st.tuples(PORTS, PORTS, BYTES, BYTES))
    return TcpSocket(draw(st.integers(0, 2**32 - 1)), local, remote, *numbers)


def attribute(kind: int, body: bytes) -> bytes:
    data = struct.pack("=HH", 4 + len(body), kind) + body
    return data + b"\0" * (-len(data) % 4)


def encoded(each: TcpSocket, before: bytes = b"", info_bytes: int = 232) -> bytes:
    """The message in which the kernel tells of a socket. `before`: attributes before its tcp_info."""
    local, remote = ipaddress.ip_address(each.local), ipaddress.ip_address(each.remote)
    family = socket.AF_INET if local.version == 4 else socket.AF_INET6
    identity = struct.pack(">HH16s16s", each.local_port, each.remote_port, local.packed, remote.packed)
    body = struct.pack("=BBBB", family, 1, 0, 0) + identity + struct.pack("=I8sIIIII", 0, b"", 0, 0, 0, 0, each.inode)
    info = bytes(120) + struct.pack("=QQ", each.sent_bytes, each.received_bytes) + bytes(200)
    body += before + attribute(2, info[:info_bytes])
    return struct.pack("=IHHII", 16 + len(body), 20, 2, 1, 0) + body


DONE = struct.pack("=IHHII", 20, 3, 2, 1, 0) + bytes(4)


@settings(max_examples=30)
@given(st.lists(sockets(), max_size=4), st.booleans(), st.binary(max_size=12))
def test_every_socket_is_read_as_it_was(many: list[TcpSocket], done: bool, other: bytes) -> None:
    data = b"".join(encoded(each, attribute(7, other)) for each in many) + DONE * done
    assert parse_reply(data) == Reply(tuple(many), done)


@settings(max_examples=30)
@given(st.lists(sockets(), min_size=1, max_size=3), st.data())
def test_what_is_cut_off_is_left_out_and_the_rest_is_kept(many: list[TcpSocket], data: st.DataObject) -> None:
    whole = b"".join(map(encoded, many))
    cut = data.draw(st.integers(0, len(whole)))
    found = parse_reply(whole[:cut]).sockets
    assert found == tuple(many[: len(found)])


@given(st.binary(max_size=600))
def test_no_answer_raises(data: bytes) -> None:
    begun = encoded(TcpSocket(1, "10.0.0.1", "10.0.0.2", 1, 2, 3, 4))[:88]
    for listener in (*parse_listening(data).sockets, *parse_listening(begun + data).sockets):
        assert ipaddress.ip_address(listener.address)
    for each in (*parse_reply(data).sockets, *parse_reply(begun + data).sockets):
        assert ipaddress.ip_address(each.local) and ipaddress.ip_address(each.remote)
        assert min(each.sent_bytes, each.received_bytes) >= 0


def test_a_kernel_that_does_not_count_tells_of_no_socket_and_an_error_is_told() -> None:
    old = encoded(TcpSocket(1, "10.0.0.1", "10.0.0.2", 1, 2, 3, 4), info_bytes=104)
    assert parse_reply(old).sockets == ()
    assert parse_reply(struct.pack("=IHHIIi", 20, 2, 0, 1, 0, -1)) == Reply((), True, 1)


def test_an_address_has_one_form() -> None:
    assert plain_address("::ffff:10.0.0.1") == "10.0.0.1"
    assert plain_address("fe80::1%eth0") == "fe80::1"
    assert plain_address("gpu-01") == ""
    assert len(request(socket.AF_INET)) == 72  # of a netlink header and inet_diag_req_v2


def test_a_real_connection_has_carried_what_was_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            client.sendall(b"x" * 50_000)
            left = 50_000
            while left:
                left -= len(accepted.recv(left))
            accepted.sendall(b"y" * 7)
            assert len(client.recv(7)) == 7
            own = {os.fstat(each.fileno()).st_ino: each for each in (client, accepted)}
            assert own.keys() <= socket_inodes(os.getpid())
            found = {inode: each for inode, each in tcp_sockets().items() if inode in own}
    sent, got = (found[inode] for inode, each in own.items())
    assert sent.sent_bytes - 50_000 in (0, 1) and sent.received_bytes == 7  # the handshake counts as one
    assert got.received_bytes == 50_000 and got.sent_bytes - 7 in (-7, 0, 1)  # acknowledged with the next packet
    assert (got.local_port, got.remote_port) == (sent.remote_port, sent.local_port)


def test_who_listens_is_told_for_one_port_and_connections_are_not() -> None:
    assert len(listening_request(socket.AF_INET, 80)) == 72
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as server, socket.socket() as second:
        port = server.getsockname()[1]
        second.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        second.bind(("127.0.0.1", port))
        second.listen()
        with (
            socket.create_connection(("127.0.0.1", port)),
            socket.create_server(("127.0.0.1", 0)),
            socket.create_server(("::1", port), family=socket.AF_INET6) as third,
        ):
            found = listening_sockets(port)
            wanted = {(os.fstat(each.fileno()).st_ino, each.getsockname()[0]) for each in (server, second, third)}
    assert {(each.inode, each.address) for each in found} == wanted
    assert {(each.port, each.owner) for each in found} == {(port, os.geteuid())}
    assert listening_sockets(port) == []


def test_of_an_environment_nothing_else_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    names = frozenset({"PATH", "NO_SUCH_VARIABLE"})
    assert read_variables([os.getpid()], names).keys() == {"PATH"}
    assert read_variables([], names) == {}


def test_a_process_that_is_gone_has_no_sockets_and_one_that_may_not_be_seen_is_unknown(tmp_path: object) -> None:
    assert socket_inodes(2**22 + 1) == frozenset()
    with pytest.raises(SocketsUnknown, match="a network namespace of their own"):
        other = f"{tmp_path}/7/ns"
        os.makedirs(other)
        os.makedirs(f"{tmp_path}/7/fd")
        os.makedirs(f"{tmp_path}/self/ns")
        for folder in (other, f"{tmp_path}/self/ns"):
            open(f"{folder}/net", "w").close()
        socket_inodes(7, str(tmp_path))
