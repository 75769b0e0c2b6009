# A container reaches its memory limit: its first process, the rank, is killed. Four pods, kubectl's times; no kernel log; one log ends in a line.
KERNEL_TIME=iso; . "$(dirname "$0")/lab.sh"
hosts n0 n1 n2 n3
export WORLD_SIZE=4 MASTER_ADDR=10.77.0.11 MASTER_PORT=29500 LEAK_RANK=3; unset PYTHONUNBUFFERED
pods=/run/lab/cg/kubepods; mkdir -p $out/kubectl
for i in 0 1 2 3; do   # pod i is rank i, on the host (i + 1) % 4
    host=n$(((i + 1) % 4)); group=$pods/pod$i; mkdir -p $group/main; echo 900M > $group/main/memory.limit_in_bytes
    (echo $BASHPID > $group/main/tasks; export RANK=$i; exec ip netns exec $host unshare --uts --pid --fork sh -c 'hostname $0; exec "$@"' \
        tts-worker-$i /opt/venv/bin/python train_pod.py) 2>&1 | grep -v --line-buffered '^unshare: ' | python3 "$here/stamp.py" kube $host main > $out/kubectl/logs.tts-worker-$i.txt &
    parts[i]=$!
done
wait ${parts[0]} ${parts[1]} ${parts[2]} ${parts[3]}
for i in 0 2 3; do host=n$(((i + 1) % 4)); { echo "root@$host:/sys/fs/cgroup/memory/kubepods/.../main# grep . memory.*"; cd $pods/pod$i/main
    grep . memory.limit_in_bytes memory.max_usage_in_bytes memory.failcnt memory.oom_control; } > $out/cgroup.$host.txt; done
cd /; rmdir $pods/*/main $pods/pod? $pods; rm $out/kernel.*
truncate -s -41 $out/kubectl/logs.tts-worker-3.txt
python3 "$here/describe_pods.py" 3 $out/kubectl
echo "namespace speech, StatefulSet tts-worker. cgroup of the node with tts-worker-1: no access." > $out/README.txt
keep oom-container
