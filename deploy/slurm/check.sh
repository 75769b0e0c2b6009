#!/bin/bash
# Checks the gate's setup on this node, as gate.conf has it: run it after each change. Exit status 1: something is wrong.
# shellcheck source-path=SCRIPTDIR source=gate.sh
. "${0%/*}/gate.sh" || exit 1
# shellcheck source-path=SCRIPTDIR source=gate.conf
conf=${0%/*}/gate.conf
wrong() { echo "gate: $1, so that the gate does not do what $conf says"; exit 1; }
if [ -r "$conf" ]; then
    [[ $(<"$conf") == *$'\r'* ]] && wrong "$conf has Windows line ends: sed -i 's/\r\$//' $conf"
    mistake=$("$BASH" -n "$conf" 2>&1) || wrong "$conf is no bash (${mistake//$'\n'/; })"
    . "$conf"
fi
[ -x "$LAGGARD" ] || wrong "there is no program LAGGARD=$LAGGARD"
tell_how_asked
[ -n "$SLURM_CONF" ] && export SLURM_CONF
exec "$LAGGARD" healthcheck --check-gate --scontrol "$SCONTROL" ${COLLECTOR:+--collector "$COLLECTOR"} \
    --gate-seconds "$GATE_SECONDS" --gang-seconds "$GANG_SECONDS" --gang-token "$GANG_TOKEN" \
    --kill-switch "$DISABLED" --gate-mode "$MODE" --gate-flags "${FLAGS[@]}"
