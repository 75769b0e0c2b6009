# A DataLoader worker grows until the kernel's out-of-memory killer ends it. One host, Accelerate, a progress bar.
KERNEL_TIME=iso; . "$(dirname "$0")/lab.sh"
old_job yesterday.log invalid_pointer 1
said_by_hand n3 2500 'EXT4-fs (nvme1n1p1): mounted filesystem with ordered data mode. Quota mode: none.'
hosts n3
group=/run/lab/cg/kubepods/burstable/pod7c3f9d52-71f6-4e0e-9a27-6d2f5b8f1c11; mkdir -p $group; echo 5G > $group/memory.limit_in_bytes
export LEAK_RANK=1 GLOO_SOCKET_IFNAME=lo
(echo $BASHPID > $group/tasks; exec ip netns exec n3 unshare --uts sh -c 'hostname n3; exec "$@"' sh torchrun --nproc-per-node 4 \
    --master-port 29500 train_accelerate.py) > $out/pod.log 2>&1
split_lines n3; mv $out/kernel.n3 $out/dmesg.n3.txt; rm $out/kernel.$SW
cat $group/tasks | xargs -r kill -KILL; sleep 3; rmdir $group ${group%/*} ${group%/*/*}
core_files; checkpoint 2000; nvidia_smi n3
echo "pod trainer-0 on n3; kubectl logs is pod.log" > $out/README
keep oom-dataloader
