# An operator ends the launcher on one host by SIGTERM. Four hosts, node ranks from n3 down; logs rotated and compressed; n0's log is missing.
KERNEL_TIME=iso; . "$(dirname "$0")/lab.sh"
hosts n0 n1 n2 n3
export TIMEOUT_S=60 LOG_HEAD=loguru
mkdir -p /run/lab/parts $out/var-log-train
for i in 0 1 2 3; do
    zone=UTC; [ $i = 2 ] || zone=Europe/Berlin
    TZ=$zone on n$i torchrun --nnodes 4 --node-rank $((3 - i)) --nproc-per-node 1 --master-addr 10.77.0.13 --master-port 29500 \
        train_ddp.py > /run/lab/parts/n$i 2>&1 & launcher[i]=$!
done
until_said 'step 40' /run/lab/parts/n3
kill -TERM $(ps -o ppid= -p $(rank_pid 1 /run/lab/parts))   # the parent of n2's rank
wait ${launcher[0]} ${launcher[1]} ${launcher[2]} ${launcher[3]}
for i in 1 2 3; do
    log=$out/var-log-train/n$i.train.log; at=$(grep -n -m 1 'step 20 ' /run/lab/parts/n$i | cut -d: -f1)
    head -n $at /run/lab/parts/n$i | gzip -9n > $log.1.gz; tail -n +$((at + 1)) /run/lab/parts/n$i > $log
done
split_lines n2; rm $out/kernel.*
{ echo "ml@n2:~$ last -n 3 -F"; cat <<'END'; } > $out/last.n2.txt
ml       pts/0        10.77.0.1        Thu Nov 26 04:58:10 2026   still logged in
root     pts/1        10.77.0.1        Wed Nov 25 16:20:47 2026 - Wed Nov 25 16:31:02 2026  (00:10)
reboot   system boot  6.18.44          Wed Nov 25 18:27:45 2026   still running
END
echo "logs of n1..n3 from /var/log/train (n0's disk is read-only, nothing there). n2 was set up last week and still has UTC, the
others have Berlin's time." > $out/notes.txt
keep kill-agent
