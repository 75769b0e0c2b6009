"""The tables, by version. A database of an earlier version is brought up to the newest one by one."""

from __future__ import annotations

from typing import Final

from laggard.collector.incidents import (
    confirmation_rows,
    digest_rows,
    fault_rows,
    incident_rows,
    notice_rows,
)

VERSION: Final = 5
"""The version of the tables: in a file's `user_version`."""

STEPS: Final = {
    0: incident_rows.TABLES,
    1: digest_rows.TABLES,
    2: incident_rows.NODE_TABLES + fault_rows.TABLES,
    3: notice_rows.TABLES,
    4: confirmation_rows.TABLES,
}
"""The statements, by version, that make the next one of it."""

FILLED_FROM_INCIDENTS: Final = 3
"""The version whose table of incidents' nodes is filled from the incidents that are there."""
