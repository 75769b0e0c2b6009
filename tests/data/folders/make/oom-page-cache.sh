# Another service of a host fills its memory with files in /dev/shm until the kernel ends a rank. Four hosts, Accelerate under torchrun.
KERNEL_TIME=iso NIC=eno2 BR=brt SW=tor7 PORT=xe KERNEL_DROP='br0|eth0|leaf1|swp|vmbr1|enp65s0|spine2|et[0-9]|br1|eno1np0|agg1|ge[0-9]'; . "$(dirname "$0")/lab.sh"
hosts n0 n1 n2 n3
group=/run/lab/cg/n1; mkdir -p $group/{train.scope,stage-data.service}; echo 1000M > $group/memory.limit_in_bytes
export LEAK_RANK=none SAMPLES=400000 OMP_NUM_THREADS=1
mkdir -p $out/logs
for i in 0 1 2 3; do
    (if [ $i = 1 ]; then echo $BASHPID > $group/train.scope/tasks; fi
     exec ip netns exec n$i unshare --uts sh -c 'hostname $0; exec "$@"' n$i torchrun --nnodes 4 --nproc-per-node 1 \
        --node-rank $(((i + 1) % 4)) --master-addr 10.77.0.13 --master-port 29500 --tee 3 --log-dir /run/lab/logs train_accelerate.py) > $out/logs/n$i.txt 2>&1 &
done
until_said 'rank 2 of 4' $out/logs/n1.txt; sleep 20
{ echo "root@n1:~# cd /sys/fs/cgroup/memory/n1; each memory.usage_in_bytes"; for part in . train.scope stage-data.service; do
  echo "$part $(cat $group/$part/memory.usage_in_bytes)"; done; } > $out/memory.n1.txt
left=$(((1000 * 1048576 - $(cat $group/memory.usage_in_bytes)) / 1048576 + 120))
(echo $BASHPID > $group/stage-data.service/tasks; for k in $(seq $((left / 24))); do
    dd if=/dev/zero of=/dev/shm/stage.$k bs=1M count=24 status=none; sleep 0.3; done)
sleep 10; wait_for=30; while [ $((wait_for--)) -gt 0 ] && [ -n "$(ip netns pids n0)" ]; do sleep 1; done
{ echo "root@n1:~# du -sh /dev/shm; ls /dev/shm | wc -l"; du -sh /dev/shm; ls /dev/shm | wc -l
  for part in . train.scope stage-data.service; do echo "$part $(cat $group/$part/memory.usage_in_bytes)"; done; } >> $out/memory.n1.txt
split_lines n1
sed -E 's/^(2026)-(11)-(26)T([0-9:]{8}),[0-9]+\+00:00 /Nov 26 \4 n1 kernel: /' $out/kernel.n1 > $out/journal-k.n1.txt; rm $out/kernel.*
cat $group/*/tasks | xargs -r kill -KILL; rm -rf /dev/shm/stage.*; sleep 3; rmdir $group/*/ $group
checkpoint 900
echo "vision-pre, 4 nodes, accelerate. node-rank is (node + 1) mod 4. n1 also stages tomorrow's data set (stage-data.service)." > $out/README
keep oom-page-cache
