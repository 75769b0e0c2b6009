# A rank waits for ever for a data shard's lock, the others for it in all_reduce. One host, mp.spawn, stacks by py-spy.
KERNEL_TIME=iso; . "$(dirname "$0")/lab.sh"
old_job train-2026-11-24.log invalid_pointer 0
said_by_hand n1 1200 'usb 2-1: USB disconnect, device number 3'
hosts n1
export LOG_HEAD=loguru TIMEOUT_S=3600 GLOO_SOCKET_IFNAME=lo
mkdir -p /home/ml/data && touch /home/ml/data/shard_1_00018.lock
on n1 /opt/venv/bin/python train_spawn.py 4 > $out/train.log 2>&1 & job=$!
until_said 'step 15' $out/train.log; sleep 45
for r in 0 1 2 3; do py-spy dump --pid $(rank_pid $r $out/train.log) > $out/py-spy.rank$r.txt 2>&1; done
processes n1 > $out/ps.txt; on n1 free -h > $out/free.txt
kill -TERM $job; sleep 5
split_lines n1; mv $out/kernel.n1 $out/dmesg.n1.txt; rm $out/kernel.$SW
core_files; checkpoint 1200
echo "No more output, so I took py-spy of all four and then ended the job.
train-2026-11-24.log is the run of Tuesday." > $out/README.txt
keep hang-sleep
