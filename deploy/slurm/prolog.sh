#!/bin/bash
# SLURM's Prolog: is this node fit for the job? Exit status 1 rejects the job and drains the node.
# shellcheck source-path=SCRIPTDIR source=gate.sh
. "${0%/*}/gate.sh" || exit 0
# shellcheck source-path=SCRIPTDIR source=gate.conf
[ -r "${0%/*}/gate.conf" ] && . "${0%/*}/gate.conf"
gate prolog --drain ${SLURM_JOB_GPUS:+--gpus "$SLURM_JOB_GPUS"}
