# The switch's port of one host goes down in the middle. Four hosts, one log a host, tools' pastes before and after.
KERNEL_TIME=ctime; . "$(dirname "$0")/lab.sh"
said_by_hand n0 3000 'EXT4-fs (nvme1n1p1): mounted filesystem with ordered data mode. Quota mode: none.'
hosts n0 n1 n2 n3
export TIMEOUT_S=40 LOG_HEAD=time
mkdir -p $out/logs
four_torchruns $out/logs/rank%s.out train_ddp.py
until_said 'step 5' $out/logs/rank0.out; pastes before n0 n1 n2 n3
until_said 'step 20' $out/logs/rank0.out
ip link set ${PORT}2 down; sleep 3; split_lines n2
until_said 'ChildFailedError' $out/logs/rank0.out; sleep 15
pastes after n0 n1 n2 n3
for n in n0 n1 n2 n3; do split_lines $n; mv $out/kernel.$n $out/dmesg-T.$n.txt; done; mv $out/kernel.$SW $out/switch-$SW.log
nvidia_smi n1; checkpoint
echo "ranks 0-3 = n0-n3, one each. switch-$SW.log is the leaf's own kernel log." > $out/README
keep port-link-down
