"""The tables, and their version."""

from __future__ import annotations

from typing import Final

from laggard.collector.incidents import (
    confirmation_rows,
    digest_rows,
    fault_rows,
    incident_rows,
)

VERSION: Final = 5
"""The version of the tables: in a file's `user_version`. A database of another one is refused."""

TABLES: Final = "".join(
    rows.TABLES
    for rows in (
        incident_rows,
        digest_rows,
        fault_rows,
        confirmation_rows,
    )
)
"""The statements that make them."""
