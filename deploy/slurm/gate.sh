# shellcheck shell=bash
# The part that prolog.sh, epilog.sh and healthcheck.sh share, and source. It needs bash and no other program, and fails
# open: a laggard that is broken, missing, slow or hung rejects no job. Only its line `gate: reject` does.

LAGGARD=/opt/laggard/bin/laggard
MODE=report-only
COLLECTOR=
SCONTROL=/usr/bin/scontrol
DISABLED=/etc/laggard/disabled
GATE_SECONDS=15
GANG_SECONDS=200
GANG_JOIN_SECONDS=60
GANG_TOKEN=/etc/laggard/slurm/gang-token
CHECKED=/run/laggard/gate-checked
FLAGS=()

gate() { # profile, flags of `laggard healthcheck`... Returns 1 where the node is to be rejected, else 0.
    [ -e "$DISABLED" ] && return 0
    local answer line said='' reject=0 until=$((SECONDS + GATE_SECONDS))
    local words=(healthcheck --profile "$1" --gate "$MODE" --scontrol "$SCONTROL" --kill-switch "$DISABLED")
    [ -n "$COLLECTOR" ] && words+=(--collector "$COLLECTOR")
    [ -n "$SLURM_CONF" ] && export SLURM_CONF
    # Once after each boot the gate also checks its own setup, and complains in the log of what would let all pass.
    [ "$MODE" = enforce ] && [ ! -e "$CHECKED" ] && { : >"$CHECKED"; } 2>/dev/null && words+=(--check-gate)
    # No process that is started here may hold this script's output open: SLURM reads it to its end.
    exec {answer}< <(exec "$LAGGARD" "${words[@]}" "${@:2}" "${FLAGS[@]}" </dev/null 2>&1)
    while ((SECONDS < until)) && IFS= read -r -t $((until - SECONDS)) -u "$answer" line; do
        case ${FLAGS[*]} in *--verbose*) echo "$line" >&2 ;; *) said+=${said:+; }$line ;; esac
        [ "$line" = "gate: reject" ] && reject=1
    done
    [ -n "$said" ] && echo "$said" >&2
    ((SECONDS < until)) || echo "laggard: no answer within $GATE_SECONDS s" >&2
    return $reject
}
