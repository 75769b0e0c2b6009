"""A PostgreSQL on a disk of 150 MB, which is filled: what a collector says of it, and that it goes on once there is
room. Run in a mount namespace of its own, which ends with it."""

from __future__ import annotations

import os
import subprocess
import sys

from support import postgres as support
from support.stores import open_store

from laggard.collector.incidents.incident import Incident
from laggard.collector.incidents.tables import DatabaseError
from laggard.model import Culprit

BYTES = 150 << 20


def main() -> int:
    if why := support.why_none():
        print(f"SKIP {why}")
        return 0
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={BYTES},mode=1777", "none", "/mnt"], check=False)
    if mounted.returncode:
        print("SKIP needs the right to mount")
        return 0
    with support.running(folder="/mnt") as server:
        url = server.database()
        database = open_store(url, max_bytes=1 << 30)
        filler = os.path.join(server.folder, "filler")
        status = os.statvfs("/mnt")
        with open(filler, "wb") as file:
            file.truncate(0)
            os.posix_fallocate(file.fileno(), 0, max(1, status.f_bavail * status.f_frsize - (4 << 20)))
        culprit = Culprit("slow_compute", (2,), node="n1", evidence=tuple(os.urandom(180).hex() for _ in range(16)))
        number = 0
        try:
            while number < 20_000:
                rows = [
                    Incident(number + n, 1000, f"job-{number + n}", what="slow", opened_at=1.79e9, seen_at=1.79e9,
                             opened_as=culprit, culprit=culprit)
                    for n in range(100)
                ]  # fmt: skip
                database.write(rows, 1.79e9)
                number += 100
        except DatabaseError as error:
            print(error)
        os.unlink(filler)
        database.close()
        again = open_store(url, max_bytes=1 << 30)
        again.write(rows, 1.79e9)
        again.close()
        print("written again")
    return 0


if __name__ == "__main__":
    sys.exit(main())
