# A host's own interface is off when the job starts, so that its rank never comes. Four hosts, a shell loop over ssh, no launcher.
KERNEL_TIME=iso NIC=eno1np0 BR=br1 SW=agg1 PORT=ge KERNEL_KEEP='[ :]br1|eno1np0|agg1|ge[0-9]'; . "$(dirname "$0")/lab.sh"
hosts n0 n1 n2 n3
for _ in 1 2 3; do ip -n n1 link set $NIC down; sleep 2; ip -n n1 link set $NIC up; sleep 3; done
ip -n n1 link set $NIC down; sleep 1; split_lines n1
export WORLD_SIZE=4 MASTER_ADDR=10.77.0.12 MASTER_PORT=29500 TIMEOUT_S=45 LOG_HEAD=time
mkdir -p $out/logs
for i in 0 1 2 3; do
    host=n$(((i + 2) % 4))
    (RANK=$i on $host /opt/venv/bin/python train_ddp.py > $out/logs/$host.rank$i.log 2>&1; status=$?; echo "$(date +%H:%M:%S) $host: exit status $status" >> $out/launch.txt) & parts[i]=$!
    echo "$(date +%H:%M:%S) ssh $host RANK=$i WORLD_SIZE=4 MASTER_ADDR=10.77.0.12 python train_ddp.py" >> $out/launch.txt
done
sleep 12; for n in n0 n1 n2 n3; do echo "## $n ip -br link / ip neigh / ip -s link"; on $n ip -br link; on $n ip neigh; on $n ip -s link show $NIC; done > $out/net.txt
wait ${parts[0]} ${parts[1]} ${parts[2]} ${parts[3]}
for n in n0 n1 n2 n3; do split_lines $n; done
for n in n1 n3; do mv $out/kernel.$n $out/dmesg-iso.$n.txt; done; rm $out/kernel.n? $out/kernel.$SW
echo "first job after the maintenance window. starts and then nothing, twice. n0: dmesg needs root there." > $out/README
keep port-absent
