"""Every command of docs/operate.md is run: by a test that takes it from the page, or by `make install-check`, which
does the same in a fresh Debian under systemd."""

from __future__ import annotations

import re

import pytest
from support.docs_commands import command_lines
from support.paths import REPOSITORY

PAGE = REPOSITORY / "docs" / "operate.md"
BACKUP = "tests/collector/incidents/test_backup.py"
WHEELHOUSE = "tests/test_wheelhouse.py"
SYSTEMD = "scripts/install_check_parts/systemd.py"
ACCEPT = "tests/gate/test_accept.py"

RUN_BY = {
    "umask 077": f"{SYSTEMD}::_backup_and_restore",
    "sqlite3 ": f"{BACKUP}::test_a_copy_of_a_live_database_is_a_whole_one",
    "/opt/laggard/bin/laggard incidents --database": f"{SYSTEMD}::_backup_and_restore",
    "/opt/laggard/bin/python3 -c": f"{BACKUP}::test_a_copy_of_a_live_database_is_a_whole_one",
    "systemctl stop laggard-collector": f"{SYSTEMD}::_backup_and_restore",
    "rm -f /var/lib/laggard/incidents.sqlite-wal": f"{BACKUP}::_restore",
    "install -m 600 -o laggard": f"{BACKUP}::_restore",
    "systemctl start laggard-collector": f"{SYSTEMD}::_backup_and_restore",
    "pg_dump ": f"{BACKUP}::test_a_dump_is_restored_into_a_fresh_postgresql",
    "psql ": f"{BACKUP}::test_a_dump_is_restored_into_a_fresh_postgresql",
    "python3 -m venv /opt/laggard-NEW": f"{SYSTEMD}::_upgrade",
    "/opt/laggard-NEW/bin/pip install": f"{SYSTEMD}::_upgrade",
    "ln -s laggard-NEW": f"{WHEELHOUSE}::test_a_link_is_switched_without_a_moment_in_which_laggard_is_gone",
    "systemctl restart laggard-reader laggard-agent": f"{SYSTEMD}::_upgrade",
    "make wheelhouse": f"{WHEELHOUSE}::test_make_makes_it_for_another_python",
    "pip install --no-index": f"{WHEELHOUSE}::test_it_suffices_without_a_network",
    "sudo laggard healthcheck --accept": f"{ACCEPT}::test_the_lines_of_the_page_accept_list_and_end",
    "laggard healthcheck --accept": f"{ACCEPT}::test_the_lines_of_the_page_accept_list_and_end",
}
"""How each command of the page begins, and what runs it. Its code has those words, or runs the page's whole block, of
which BLOCKS has the heading."""

BLOCKS = {f"{SYSTEMD}::_backup_and_restore": "Backup and restore", f"{SYSTEMD}::_upgrade": "Upgrade, and back"}
"""What runs whole blocks of the page, as they stand there, and under which heading those are."""

COMMANDS = [line.text for line in command_lines(PAGE)]


def _code(how: str) -> str:
    """The file of a function, once it is there."""
    file, _, name = how.partition("::")
    text = (REPOSITORY / file).read_text(encoding="utf-8")
    assert f"def {name}(" in text, f"{how} is not there"
    return text


def _heading(command: str) -> str:
    """The heading of the page under which the command stands."""
    before = PAGE.read_text(encoding="utf-8").partition(f"    {command.partition('  ')[0]}")[0]
    return re.findall(r"^#+ (.*)$", before, re.MULTILINE)[-1]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_is_run(command: str) -> None:
    runs = [(beginning, how) for beginning, how in RUN_BY.items() if command.startswith(beginning)]
    assert runs, f"nothing runs `{command}`: write the test that does, and name it in RUN_BY"
    for beginning, how in runs:
        code = _code(how)
        if how in BLOCKS:
            assert f'"{BLOCKS[how]}"' in code and "operate.md" in code, f"{how} runs no block of the page"
            assert _heading(command) == BLOCKS[how], f"`{command}` stands under another heading"
        else:
            assert beginning.strip() in code and "operate.md" in code, f"{how} does not run `{beginning}`"


def test_the_table_has_what_the_page_has() -> None:
    unused = [beginning for beginning in RUN_BY if not any(it.startswith(beginning) for it in COMMANDS)]
    assert not unused, f"the page has these no more: {unused}"
    assert len(COMMANDS) >= len(RUN_BY)
