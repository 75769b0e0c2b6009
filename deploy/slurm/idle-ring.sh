#!/bin/bash
# The job that idle-rings.sh submits: one ring in pairs. LAGGARD, the folder of the state, flags of `laggard ring`.
laggard=$1 state=$2
srun --ntasks-per-node=1 --kill-on-bad-exit=0 "$laggard" ring --pairs --seconds 120 --deadline 420 --format json "${@:3}"
status=$?
# 0 and 1 are answers about all nodes; after another status they are measured again.
((status <= 1)) || exit "$status"
scontrol show hostnames "$SLURM_JOB_NODELIST" | while read -r node; do touch "$state/measured/$node"; done
exit "$status"
