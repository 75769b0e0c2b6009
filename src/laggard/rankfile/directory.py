"""The rank directory: one of the node, with a subdirectory for each user, so that nobody fills or removes another's.

The node's directory should be root's, with mode 1777 (tmpfiles.d, or an agent that runs as root): the sticky bit keeps
users from one another's entries, but not the owner of the directory from anybody's.
"""

from __future__ import annotations

import contextlib
import os
import stat

SHARED_MODE = 0o1777


def own_directory(base: str) -> str:
    """This user's subdirectory of `base`, by uid; both are created where they are missing. `base` itself where the
    subdirectory cannot be created, or its name is taken by somebody else. Raises OSError where there is no `base` and
    it cannot be created."""
    _make_shared(base)
    own = os.path.join(base, str(os.geteuid()))
    with contextlib.suppress(OSError):
        os.mkdir(own)
        os.chmod(own, 0o755)  # the agent is another user, whatever the umask
    with contextlib.suppress(OSError):
        about = os.lstat(own)
        if stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and os.access(own, os.W_OK):
            return own
    return base


def log_directory(base: str) -> str:
    """The directory where this user's processes keep NCCL's private logs: hidden in own_directory(), or in `base` under
    a name of their own. Raises OSError as own_directory() does."""
    own = own_directory(base)
    return os.path.join(own, ".nccl" if own != base else f".nccl-{os.geteuid()}")


def _make_shared(directory: str) -> None:
    """Creates the directory for the ranks of every user (sticky, as /tmp), unless it is there already."""
    try:
        os.makedirs(directory)
    except FileExistsError:
        return
    os.chmod(directory, SHARED_MODE)
