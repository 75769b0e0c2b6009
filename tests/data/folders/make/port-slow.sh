# A host's port sends at 16 kbit/s from the middle on, until gloo times out. Four hosts, each recorded by `laggard run`.
KERNEL_TIME=iso; . "$(dirname "$0")/lab.sh"
said_by_hand n2 3000 'usb 2-1: USB disconnect, device number 4'
hosts n0 n1 n2 n3
export TIMEOUT_S=40 LOG_HEAD=loguru WIDTH=256 TORCH_CPP_LOG_LEVEL=INFO
mkdir -p $out/logs $out/recording
for i in 0 1 2 3; do
    on n$i laggard run --record $out/recording torchrun --nnodes 4 --node-rank $i --nproc-per-node 1 --master-addr 10.77.0.10 \
        --master-port 29500 train_ddp.py > $out/logs/n$i.log 2>&1 &
done
until_said 'step 5' $out/logs/n0.log; pastes before n0 n1 n2 n3
until_said 'step 20' $out/logs/n0.log
tc -n n1 qdisc add dev $NIC root tbf rate 16kbit burst 4kb latency 400ms
until_said 'ChildFailedError' $out/logs/n0.log; sleep 5
pastes after n0 n1 n2 n3
for n in n0 n1 n2 n3; do { echo "root@$n:~# tc -s qdisc show dev $NIC"; tc -n $n -s qdisc show dev $NIC; } > $out/tc.$n.txt; done
for n in n0 n1 n2 n3; do split_lines $n; mv $out/kernel.$n $out/dmesg.$n.txt; done; mv $out/kernel.$SW $out/$SW.dmesg.txt
checkpoint
echo "It trained for a while, then all four stopped within a minute. No change of the network was announced." > $out/README
keep port-slow
