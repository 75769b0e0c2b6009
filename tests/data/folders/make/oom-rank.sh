# A rank grows until the kernel's out-of-memory killer ends it in its job's cgroup. Four hosts, one log a host.
KERNEL_TIME=ctime; . "$(dirname "$0")/lab.sh"
said_by_hand n3 8000 'usb 1-14.1: new high-speed USB device number 5 using xhci_hcd'
hosts n0 n1 n2 n3
group=/run/lab/cg/slurm/uid_1003/job_88123; mkdir -p $group
export ACT=leak:2:20 TIMEOUT_S=60 LOG_HEAD=time
mkdir -p $out/logs
for i in 0 1 2 3; do
    mkdir -p $group/n$i && echo 1400M > $group/n$i/memory.limit_in_bytes
    (echo $BASHPID > $group/n$i/tasks; exec ip netns exec n$i unshare --uts sh -c 'hostname $0; exec "$@"' n$i torchrun \
        --nnodes 4 --node-rank $i --nproc-per-node 1 --master-addr 10.77.0.10 --master-port 29500 train_ddp.py) > $out/logs/node-$i.log 2>&1 &
done
until_said 'step 15' $out/logs/node-0.log
for n in n0 n1 n2 n3; do on $n free -m > $out/free-m.$n.txt; done
until_said 'ChildFailedError' $out/logs/node-2.log; sleep 15
split_lines n2
for n in n0 n1 n2 n3; do split_lines $n; mv $out/kernel.$n $out/dmesg-T.$n.txt; done; rm $out/kernel.$SW
for i in 0 1 2 3; do cat $group/n$i/tasks | xargs -r kill -KILL; done; sleep 3; rmdir $group/n? $group ${group%/*} ${group%/*/*}
cat > $out/sacct.txt <<END
JobID           JobName  Partition      State ExitCode        NodeList 
------------ ---------- ---------- ---------- -------- --------------- 
88123             ddp-m      train    OUT_OF_ME+    0:125         n[0-3] 
88123.batch       batch            OUT_OF_ME+    0:125             n0 
88119             ddp-m      train  COMPLETED      0:0         n[0-3] 
END
echo "n3 had somebody at its console this morning (keyboard). GPUs are idle." > $out/note.md
nvidia_smi n2; checkpoint
keep oom-rank
