"""LBNL NHC, where NHC_FOLDER names a folder with `nhc` and `scripts` (github.com/mej/nhc), else a stand-in of a few
lines, which has of NHC what laggard relies on: `-e`, nhc_load_conf, CHECKS, die, CHECK_DIED and NHC_CHECK_ALL."""

import os
from pathlib import Path

import pytest

STAND_IN = r"""#!/bin/bash
# A stand-in for NHC 1.4.3.
NAME=nhc; HOSTNAME=n1; CHECK_DIED=0
die() { CHECK_DIED=1; echo "ERROR:  $NAME:  Health check failed:  ${*:2}"; [[ $NHC_CHECK_ALL == 1 ]] || exit "$1"; }
check_file_test() { [[ -e ${!#} ]] || { die 1 "$FUNCNAME:  ${!#} is not there"; return 1; }; }
nhc_load_conf() {
    while read -r LINE; do
        [[ $LINE == \#* || -z $LINE || $HOSTNAME != ${LINE%% ||*} ]] || CHECKS[${#CHECKS[*]}]="${LINE#*|| }"
    done <"$1"
}
while getopts e: OPTION; do EVAL_LINE=$OPTARG; done
shift $((OPTIND - 1))
for WORD; do eval "$WORD"; done
eval $EVAL_LINE
exit $?
"""


def nhc_settings(folder: Path, itself: bool) -> str:
    """The keys of `nhc`, in a file of site checks, that name the program: NHC itself, or the stand-in, which is made in
    `folder`. Skips the test where NHC is not here."""
    real = os.environ.get("NHC_FOLDER", "")
    if itself and not real:
        pytest.skip("NHC_FOLDER names no folder with NHC")
    if itself:
        return f"program: {real}/nhc, options: [-D, {real}]"
    stand_in = folder / "nhc"
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o700)
    return f"program: {stand_in}"
