# A host gets a blackhole route for the training's network in the middle. Four hosts, torchrun's c10d rendezvous, one log for all.
KERNEL_TIME=iso NIC=enp65s0 BR=vmbr1 SW=spine2 PORT=et KERNEL_KEEP='vmbr1|enp65s0|spine2|et[0-9]'; . "$(dirname "$0")/lab.sh"
hosts n0 n1 n2 n3
export TIMEOUT_S=40 LOG_HEAD=json
mkdir -p /run/lab/parts
for i in 1 0 2 3; do
    on n$i torchrun --nnodes 4 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint 10.77.0.11:29400 --rdzv-id vlm-7 --role trainer --tee 3 \
        --log-dir /run/lab/logs train_ddp.py > /run/lab/parts/n$i 2>&1 & agents[i]=$!
done
until_said 'step 25 ' "/run/lab/parts/n1"
ip -n n0 route add blackhole 10.77.0.0/28
ip -n n0 route add blackhole 10.77.0.8/29
sleep 25; for n in n0 n1 n2 n3; do echo "== $n: ip -4 route show; ss -tn state established"; on $n ip -4 route show; on $n ss -tn state established | head -40; done > $out/net-during.txt
sleep 50
for n in n0 n1 n3; do sed "s/^/$n| /" /run/lab/parts/$n; done > $out/salt-cmd-run.txt
for n in n0 n1 n2 n3; do split_lines $n; done
sed -E 's/^2026-11-26T([0-9:]{8}),[0-9]+\+00:00 /Nov 26 \1 n0 kernel: /' $out/kernel.n0 | grep -v 'BIOS\|APIC\|NUMA\|NX ' > $out/kern.log.n0; rm $out/kernel.*
echo "n2 does not answer the salt master since yesterday (its minion), the node itself is up and its rank ran." > $out/README
keep port-blackhole
