"""Files with secrets, and whether every user of the machine can read them.

A group that can is not judged: root's file of mode 0640 is how a daemon that is not root gets its secret.
"""

from __future__ import annotations

import os
import stat

from laggard.errors import UsageError


def refuse_exposed(path: str, where: str) -> None:
    """Refuses an exposed file of a secret that lets whoever has it change something. `where`: the flag or setting that
    names the file. Raises UsageError."""
    if text := exposure(path):
        raise UsageError(f"{where} {path} {text}")


def warn_of_exposed(path: str, where: str) -> None:
    """Warns of an exposed file of a secret without which a daemon would no longer see: Kubernetes, for one, mounts them
    readable for all, where no other user is."""
    import logging  # here: the gate, which has to start fast, warns of nothing

    if text := exposure(path):
        logging.getLogger("laggard.secrets").warning("%s %s %s", where, path, text)


def exposure(path: str) -> str:
    """The fault, and what to do about it; empty where no stranger reaches the file, or where it is not there."""
    try:
        place = os.path.realpath(path, strict=True)
        mode = os.stat(place).st_mode
        reachable = all(os.stat(folder).st_mode & stat.S_IXOTH for folder in _folders(place))
    except OSError:  # who reads it says what is wrong
        return ""
    if not reachable or not mode & (stat.S_IROTH | stat.S_IWOTH) or not stat.S_ISREG(mode):
        return ""
    can = "read" if mode & stat.S_IROTH else "change"
    return f"is for every user of this machine to {can}: chmod o= {place}"


def _folders(path: str) -> list[str]:
    folders = [os.path.dirname(path)]
    while folders[-1] != os.path.dirname(folders[-1]):
        folders.append(os.path.dirname(folders[-1]))
    return folders
