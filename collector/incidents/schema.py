"""The tables, by version. A database of an earlier version is brought up to the newest one by one."""

from __future__ import annotations

from typing import Final

from laggard.collector.incidents import (
    advice_rows,
    confirmation_rows,
    digest_rows,
    fault_rows,
    incident_rows,
    loss_rows,
    run_rows,
)

VERSION: Final = 5
"""The version of the tables: in a file's `user_version`."""

STEPS: Final = {
    0: incident_rows.TABLES,
    1: digest_rows.TABLES,
    2: loss_rows.TABLES + fault_rows.TABLES + run_rows.TABLES,
    3: advice_rows.TABLES,
    4: confirmation_rows.TABLES,
}
"""The statements, by version, that make the next one of it."""

FILLED_FROM_INCIDENTS: Final = 3
"""The version whose new tables are filled from the incidents that are there."""
