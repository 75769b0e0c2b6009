"""The table of NCCL's variables against its releases (support/nccl_forms.py): a variable that is said to be read since
a later version than it is would be reported as without effect where it has one."""

import pytest
from support.nccl_forms import first_tags

from laggard.nccl.variables import parse_version, variables

OLDEST_TAG = (2, 3, 5)
BEFORE_THE_TAGS = (2, 4)
PLUGINS_FIRST = {"NCCL_GIN_PROXY_NTHREADS"}  # a plugin reads it whatever NCCL's version is


@pytest.mark.parametrize(("name", "tag"), sorted(first_tags().items()))
def test_a_variable_is_read_since_the_first_release_that_has_it(name: str, tag: str) -> None:
    since, first = parse_version(variables()[name].since), parse_version(tag)
    assert since <= first, f"{name} is in {tag}"
    if name in PLUGINS_FIRST:
        assert not since
    elif first > OLDEST_TAG:
        assert since[:2] == first[:2], f"{name} is in no release before {tag}"
    else:
        assert since < BEFORE_THE_TAGS


def test_the_releases_cover_the_table() -> None:
    """All but what plugins read, and two that were gone before the oldest tag."""
    missing = {name for name in variables() if name not in first_tags()}
    assert len(missing) < 20 and {"NCCL_CHECKS_DISABLE", "NCCL_SINGLE_RING_THRESHOLD"} <= missing, sorted(missing)
