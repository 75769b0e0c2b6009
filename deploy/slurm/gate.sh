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
LIMIT=GATE_SECONDS
CHECKED=/run/laggard/gate-checked
FLAGS=()

gate() { # profile, flags of `laggard healthcheck`... Returns 1 where the node is to be rejected, else 0.
    [ -e "$DISABLED" ] && [ "$1" != periodic ] && return 0 # the health check goes on, and only logs that it is off
    local answer group=0 line said='' reject=0 checks=0 now=0 until
    if ! [[ $GATE_SECONDS =~ ^[1-9][0-9]{0,4}$ ]]; then # bash's own error would be status 1, which drains the node
        echo "laggard: $LIMIT takes a whole number of seconds, not $GATE_SECONDS: 15 is taken" >&2
        GATE_SECONDS=15
    fi
    read_uptime
    until=$((now + GATE_SECONDS))
    # laggard ends by itself some time before it is killed.
    local words=(healthcheck --profile "$1" --gate "$MODE" --scontrol "$SCONTROL" --kill-switch "$DISABLED")
    words+=(--deadline "$((GATE_SECONDS > 4 ? GATE_SECONDS - 2 : (GATE_SECONDS + 1) / 2))")
    [ -n "$COLLECTOR" ] && words+=(--collector "$COLLECTOR")
    [ -n "$SLURM_CONF" ] && export SLURM_CONF
    # After each boot and each change of gate.conf, until nothing is wrong, the gate also checks its own setup, and
    # complains in the log of what would let all pass.
    [ "$MODE" = enforce ] && [[ ! -s $CHECKED || ${0%/*}/gate.conf -nt $CHECKED ]] && { : >>"$CHECKED"; } 2>/dev/null && checks=1 && words+=(--check-gate)
    # What is started here is a process group, whose number comes first. No process of it may hold this script's output
    # open: SLURM reads it to its end.
    exec {answer}< <(
        set -m
        { echo "$BASHPID" && exec "$LAGGARD" "${words[@]}" "${@:2}" "${FLAGS[@]}"; } </dev/null 2>&1 &
    )
    IFS= read -r -t "$GATE_SECONDS" -u "$answer" group
    while read_uptime && ((now < until)) && IFS= read -r -t $((until - now)) -u "$answer" line; do
        case ${FLAGS[*]} in *--verbose*) echo "$line" >&2 ;; *) said+=${said:+; }$line ;; esac
        case $line in "gate: reject") reject=1 ;; "gate: setup not checked"* | "gate: WRONG SETUP"*) checks=0 ;; esac
    done
    # None of it outlives this script: it would drain the node of a job that was let in.
    ((group > 1)) && kill -KILL -- "-$group" 2>/dev/null
    exec {answer}<&-
    [ -n "$said" ] && echo "$said" >&2
    read_uptime
    ((now < until)) || echo "laggard: no answer within $GATE_SECONDS s" >&2
    ((checks && now < until)) && echo checked >"$CHECKED"
    return $reject
}

read_uptime() { # Seconds, into `now`, by the clock that nobody sets: after a boot the time of day may step.
    IFS=. read -r now _ </proc/uptime
    return 0
}
