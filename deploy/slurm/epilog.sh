#!/bin/bash
# SLURM's Epilog: did the job leave the node fit? Exit status 1 drains the node.
# shellcheck source-path=SCRIPTDIR source=gate.sh
. "${0%/*}/gate.sh" || exit 0
# shellcheck source-path=SCRIPTDIR source=gate.conf
[ -r "${0%/*}/gate.conf" ] && . "${0%/*}/gate.conf"
gate epilog --drain ${SLURM_JOB_GPUS:+--gpus "$SLURM_JOB_GPUS"}
