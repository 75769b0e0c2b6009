"""Copies lines with the time and the place in front, as journald or kubectl write them.

Its arguments are journal or kube, HOST, UNIT and, where there is one, AHEAD_S: the host's clock is so many seconds
ahead, and the times inside the lines are moved as well.
"""

import datetime
import re
import sys

CLOCK = re.compile(r"(?<!\d)(\d{2}):(\d{2}):(\d{2})(?=[.,\s])")


def moved(line: str, ahead_s: int) -> str:
    """Returns the line as a clock that is `ahead_s` seconds ahead would have had it; no date changes."""

    def later(match: re.Match[str]) -> str:
        second = int(match[1]) * 3600 + int(match[2]) * 60 + int(match[3]) + ahead_s
        return f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"

    return CLOCK.sub(later, line)


def main() -> None:
    """Copies standard input until its end."""
    form, host, unit = sys.argv[1:4]
    ahead_s = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    for line in sys.stdin:
        now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=ahead_s)
        journal, kube = f"{now:%b %d %H:%M:%S} {host} {unit}: ", f"{now:%Y-%m-%dT%H:%M:%S.%f}118Z "
        head = journal if form == "journal" else kube
        sys.stdout.write(head + (moved(line, ahead_s) if ahead_s else line))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
