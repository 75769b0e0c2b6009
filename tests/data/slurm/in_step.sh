#!/bin/bash
export MASTER_ADDR=10.77.0.2 OMP_NUM_THREADS=1 PYTHONPATH={source}
enter=({spaces})
[ "$SLURMD_NODENAME" = n4 ] && exit 0
ip netns exec ${{enter[SLURM_PROCID]}} {python} -m laggard healthcheck --active --gang --only disks --no-agent     --gate enforce --collector none --join-seconds 25 --token-file {folder}/step-token > {folder}/said-$SLURMD_NODENAME
echo $? > {folder}/status-$SLURMD_NODENAME
