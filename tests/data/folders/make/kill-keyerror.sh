# A rank raises KeyError, the others' connections break. Two hosts of two ranks, journald's form; n1's clock is 90 s ahead.
KERNEL_TIME=iso; . "$(dirname "$0")/lab.sh"
hosts n0 n1
export ACT=label:3:24 LOG_HEAD=plain TIMEOUT_S=60
agent() {   # agent INDEX SECONDS_AHEAD
    on n$1 /opt/venv/bin/python -m torch.distributed.run --nnodes 2 --node-rank $1 --nproc-per-node 2 --master-addr 10.77.0.10 \
        --master-port 29500 train_ddp.py 2>&1 | python3 "$here/stamp.py" journal n$1 "seg-train[$((41207 + 19 * $1))]" $2 > $out/journal.n$1.txt
}
agent 0 0 & first=$!; agent 1 90 & second=$!
wait $first $second
split_lines n1; rm $out/kernel.*
grep -v 'systemd' /etc/hosts | tail -n +2 > $out/hosts.txt
cat > $out/README.md <<'END'
Segmentation run, `journalctl -u seg-train` of both nodes, two ranks each. The dataset was extended on Monday.
Known: chronyd on n1 has no server since the move, its clock is a minute and a half ahead.
END
keep kill-keyerror
