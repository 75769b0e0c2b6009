# A rank of a DeepSpeed job aborts in libc: free(): invalid pointer. One host, DeepSpeed's own launcher.
KERNEL_TIME=iso; . "$(dirname "$0")/lab.sh"
old_job other-job-1107.log segfault 1
said_by_hand n2 700 'nvme nvme0: 8/0/0 default/read/poll queues'
hosts n2
export ACT=invalid_pointer:3:9 GLOO_SOCKET_IFNAME=lo
on n2 free -h > $out/free.txt
environment n2 > $out/env.txt
on n2 deepspeed --num_accelerators 4 --master_port 29501 train_deepspeed.py > $out/job.log 2>&1
split_lines n2; rm $out/kernel.$SW; mv $out/kernel.n2 $out/dmesg.n2
core_files; checkpoint 1800
echo "4-way ZeRO job on n2, started by hand with deepspeed. other-job-1107.log: an other user's job, from n1." > $out/NOTES.md
keep kill-abort
