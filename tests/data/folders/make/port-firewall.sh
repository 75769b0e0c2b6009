# A firewall's rule on one host drops all TCP of the job from the middle on. Four hosts, one log with the hosts' names in front.
KERNEL_TIME=raw; . "$(dirname "$0")/lab.sh"
old_job n1-train-1124.log invalid_pointer 1
said_by_hand n3 200 'EXT4-fs (nvme1n1p1): mounted filesystem with ordered data mode. Quota mode: none.'
hosts n0 n1 n2 n3
export TIMEOUT_S=40 LOG_HEAD=plain TORCH_DISTRIBUTED_DEBUG=INFO
mkdir -p /run/lab/parts
four_torchruns /run/lab/parts/n%s train_ddp.py
for i in 0 1 2 3; do tail -n +1 --pid $$ -s 0.2 -F /run/lab/parts/n$i 2>/dev/null | sed -u "s/^/n$i: /" >> $out/all-hosts.log & done
until_said 'step 5' /run/lab/parts/n0; pastes before n0 n1 n2 n3
until_said 'step 20' /run/lab/parts/n0
on n3 nft 'table inet filter { chain input { type filter hook input priority 0; policy accept; ip saddr 10.77.0.0/24 tcp dport != 22 counter drop; }; }'
sleep 20; for n in n0 n1 n2 n3; do { echo "root@$n:~# ss -tno"; on $n ss -tno; } > $out/ss.$n.txt; done
until_said 'ChildFailedError' /run/lab/parts/n0; sleep 15
for n in n0 n1 n2 n3; do { echo "root@$n:~# nft list ruleset"; on $n nft list ruleset; } > $out/nft.$n.txt; done
pastes after n0 n1 n2 n3
for n in n0 n1 n2 n3; do split_lines $n; mv $out/kernel.$n $out/dmesg.$n.txt; done; rm $out/kernel.$SW
nvidia_smi n2; checkpoint
echo "all-hosts.log: pdsh -w n[0-3] tail. n1-train-1124.log is an other job." > $out/README
keep port-firewall
