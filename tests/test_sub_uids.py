"""Ids of /etc/subuid count as the account that has them."""

from pathlib import Path

from laggard.agent.ranks.directory import round_robin
from laggard.kit.users import Accounts


def test_an_id_in_a_range_is_its_accounts(tmp_path: Path) -> None:
    path, passwd = tmp_path / "subuid", tmp_path / "passwd"
    passwd.write_text("root:x:0:0:root:/root:/bin/sh\nada:x:1005:1005::/home/ada:/bin/sh\nbroken\n")
    path.write_text("1001:100000:65536\nada:200000:10\nnobody-knows:300000:10\nbroken\n7:-1:5\n:::\n8:0:10\n")
    accounts = Accounts(str(path), str(passwd))
    assert [accounts.account_of(uid) for uid in (100000, 165535, 165536)] == [1001, 1001, 165536]
    assert accounts.account_of(200009) == 1005
    assert accounts.account_of(300007) == 300000, "a range is an account, whoever has it"
    assert accounts.account_of(0) == 0 and accounts.account_of(5) == 5


def test_the_file_is_read_again_where_it_changed_and_need_not_be_there(tmp_path: Path) -> None:
    path = tmp_path / "subuid"
    accounts = Accounts(str(path))
    assert accounts.account_of(100000) == 100000
    path.write_text("1001:100000:65536\n")
    assert accounts.account_of(100000) == 1001
    path.write_text("1001:500000:65536\n1002:100000:65536\n")
    assert accounts.account_of(100000) == 1002
    path.unlink()
    assert accounts.account_of(100000) == 100000


def test_many_ids_of_one_account_take_one_turn(tmp_path: Path) -> None:
    path = tmp_path / "subuid"
    path.write_text("1001:100000:65536\n")
    accounts = Accounts(str(path))
    owners = [*range(100000, 100066), 1002]
    assert list(round_robin(owners, accounts.account_of))[1] == 1002
