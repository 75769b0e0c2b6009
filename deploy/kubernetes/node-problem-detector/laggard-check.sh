#!/bin/bash
# A custom plugin of node-problem-detector: asks this node's agent over HTTP, with bash alone.
#   laggard-check.sh HOST PORT
# Exits 0: no critical finding, 1: at least one, its code on standard output, 2: cannot tell.
host=${1:-127.0.0.1} port=${2:-19400}
limit=8 # seconds; node-problem-detector kills the plugin after `timeout`

unknown() { echo "$1"; exit 2; }

trap '' PIPE # an agent that hangs up is no reason to die without a word
exec 2>/dev/null
exec 3<>"/dev/tcp/$host/$port" || unknown "no agent of laggard at $host:$port"
printf 'GET /metrics HTTP/1.0\r\nHost: %s\r\nAccept: text/plain\r\n\r\n' "$host" >&3 || unknown "the agent hung up"

SECONDS=0 status='' codes='' ran=''
while IFS= read -r -t $((limit - SECONDS > 0 ? limit - SECONDS : 1)) line <&3; do
    [ $SECONDS -lt $limit ] || unknown "the agent is too slow"
    case $line in
        HTTP/1.*) status=${line#* } status=${status%% *} ;;
        'laggard_probe_last_run_timestamp_seconds{'*) ran=yes ;;
        'laggard_finding{'*'severity="critical"'*)
            code=${line#*code=\"} code=${code%%\"*}
            [[ $code =~ ^[A-Z0-9_]+$ ]] || continue
            case " $codes " in *" $code "*) ;; *) codes="$codes${codes:+ }$code" ;; esac
            ;;
    esac
done
[ "$status" = 200 ] || unknown "the agent answers ${status:-nothing}"
[ -z "$codes" ] || { echo "critical: $codes"; exit 1; }
[ "$ran" = yes ] || unknown "the agent's probes have not run yet"
echo "no critical finding"
