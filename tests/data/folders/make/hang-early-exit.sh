# A rank's list of shards is shorter: it ends with status 0, the others wait for its parameters. Slurm, one file a task.
KERNEL_TIME=iso; . "$(dirname "$0")/lab.sh"
hosts n0 n1 n2 n3; . "$here/slurm.sh"
export LOG_HEAD=time MASTER_ADDR=10.77.0.12 TIMEOUT_S=45 EMPTY_RANK=1 WORLD_SIZE=4
srun -v -N4 -n4 -J local-sgd -o $out/local-sgd.%j.%t.out bash -c 'export RANK=$(((SLURM_PROCID + 2) % 4)); host=n$SLURM_PROCID; exec ip netns exec $host \
    unshare --uts sh -c "hostname $host; exec /opt/venv/bin/python train_local.py"' > /run/lab/srun.txt 2>&1 & job=$!
until_said 'training done' "$out/local-sgd.*.out"
sleep 20; { echo "ml@login:~$ squeue -l"; squeue -l | sed "s/ root /   ml /"; } > $out/squeue.txt
wait $job; grep -v 'debug\|launching\|jobid [0-9]*: nodes' /run/lab/srun.txt | tail -20 > $out/srun.txt
stop_slurm; rm $out/kernel.*; rm -f $out/local-sgd.*.0.out
ls -l --time-style=+%H:%M:%S /home/ml/exchange | tail -12 | sed 's/root root/ml ml/' > $out/ls-exchange.txt
echo "local-sgd: n2 is rank 0, then n3, n0, n1. The file of task 0 was not copied." > $out/README
keep hang-early-exit
