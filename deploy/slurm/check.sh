#!/bin/bash
# Checks the gate's setup on this node, as gate.conf has it: run it after each change. Exit status 1: something is wrong.
# shellcheck source-path=SCRIPTDIR source=gate.sh
. "${0%/*}/gate.sh" || exit 1
# shellcheck source-path=SCRIPTDIR source=gate.conf
[ -r "${0%/*}/gate.conf" ] && . "${0%/*}/gate.conf"
[ -n "$SLURM_CONF" ] && export SLURM_CONF
exec "$LAGGARD" healthcheck --check-gate --scontrol "$SCONTROL" ${COLLECTOR:+--collector "$COLLECTOR"} \
    --gate-seconds "$GATE_SECONDS" --gang-seconds "$GANG_SECONDS"
