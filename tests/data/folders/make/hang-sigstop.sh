# A rank is stopped by SIGSTOP; the others' collective ends by gloo's timeout. Four hosts, JSON lines, one file a host.
KERNEL_TIME=ctime; . "$(dirname "$0")/lab.sh"
said_by_hand n1 4000 'EXT4-fs (nvme0n1p2): re-mounted ro. Quota mode: none.'
hosts n0 n1 n2 n3
export LOG_HEAD=json TIMEOUT_S=40
mkdir -p $out/logs
four_torchruns $out/logs/n%s.jsonl.log train_ddp.py
until_said 'step 15' $out/logs/n0.jsonl.log
kill -STOP $(rank_pid 3 $out/logs); sleep 15
for n in n0 n1 n2 n3; do processes $n > $out/ps.$n.txt; on $n free -h > $out/free.$n.txt; done
until_said 'Sending process\|ChildFailedError\|Root Cause' $out/logs/n0.jsonl.log; sleep 12
for n in n0 n1 n2 n3; do split_lines $n; mv $out/kernel.$n $out/dmesg-T.$n.txt; done; rm $out/kernel.$SW
nvidia_smi n0; checkpoint
echo "step time was fine until the end. n1: the usual remount of the image disk, ignore." > $out/note.txt
keep hang-sigstop
