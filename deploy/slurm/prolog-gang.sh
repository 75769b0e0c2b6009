#!/bin/bash
# SLURM's Prolog for clusters whose jobs may wait a minute or two: the job's nodes meet, measure one another and compare
# how fast they compute, and a node that is slow or wrong rejects the job and drains itself. In place of prolog.sh; set
# PrologEpilogTimeout (PrologTimeout) above GANG_SECONDS.
# shellcheck source-path=SCRIPTDIR source=gate.sh
. "${0%/*}/gate.sh" || exit 0
# shellcheck source-path=SCRIPTDIR source=gate.conf
[ -r "${0%/*}/gate.conf" ] && . "${0%/*}/gate.conf"
LIMIT=GANG_SECONDS
GATE_SECONDS=$GANG_SECONDS
words=(--drain --active --gang --join-seconds "$GANG_JOIN_SECONDS" --token-file "$GANG_TOKEN")
[ -n "$SLURM_JOB_GPUS" ] && words+=(--gpus "$SLURM_JOB_GPUS")
gate prolog "${words[@]}"
