#!/bin/bash
# Has idle nodes measure each other, the one that has waited longest first, so that each is measured once in a period.
# Run it every few minutes from cron or scrontab, as a user without rights, such as laggard. The rings are preemptible
# jobs of their own: whatever else is submitted ends them. Off as shipped (idle-rings.conf).
# shellcheck source-path=SCRIPTDIR source=idle-rings.conf
here=$(cd "${0%/*}" && pwd)
LAGGARD=/opt/laggard/bin/laggard
RING_PARTITION=laggard-idle
RING_NODES=8
RING_PERIOD_HOURS=24
RING_SBATCH=()
RING_FLAGS=()
RING_STATE=$HOME/laggard-rings
[ -r "$here/idle-rings.conf" ] && . "$here/idle-rings.conf"
[ "$IDLE_RINGS" = on ] || { echo "idle rings are off: IDLE_RINGS=on in $here/idle-rings.conf" >&2; exit 0; }
mkdir -p "$RING_STATE/measured" "$RING_STATE/results" || exit 1
waiting=$(squeue -h -u "$(id -un)" -n laggard-ring -o %i) || exit 1
[ -n "$waiting" ] && exit 0 # the round before still runs

# Idle nodes with the time at which each was measured last, the oldest first.
nodes=()
while read -r seen node; do nodes+=("$seen:$node"); done < <(
    sinfo -h -N -p "$RING_PARTITION" -t idle -o %N | sort -u | while read -r node; do
        echo "$(stat -c %Y "$RING_STATE/measured/$node" 2>/dev/null || echo 0) $node"
    done | sort -n
)
due_before=$(($(date +%s) - RING_PERIOD_HOURS * 3600))
for ((at = 0; at < ${#nodes[@]}; at += RING_NODES)); do
    ((${nodes[at]%%:*} <= due_before)) || break # the rest was measured later
    ring=("${nodes[@]:at:RING_NODES}")
    # A last one or two take along who was measured lately: with fewer than three nothing can be told.
    ((${#ring[@]} < 3)) && ring=("${ring[@]}" "${nodes[@]:0:$((3 - ${#ring[@]}))}")
    ((${#nodes[@]} < 3)) && break
    list=$(IFS=,; echo "${ring[*]#*:}")
    # What cannot start at once is not wanted later: --deadline takes it from the queue.
    sbatch --parsable --job-name=laggard-ring --partition="$RING_PARTITION" --nodelist="$list" --nodes="${#ring[@]}" \
        --ntasks-per-node=1 --exclusive --no-requeue --time=10 --deadline=now+15minutes --output="$RING_STATE/results/%j" \
        "${RING_SBATCH[@]}" "$here/idle-ring.sh" "$LAGGARD" "$RING_STATE" "${RING_FLAGS[@]}"
done
