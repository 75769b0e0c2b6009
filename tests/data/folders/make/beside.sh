# What lies beside the evidence in each folder and is not the cause.
said_by_hand() {   # said_by_hand HOST SECONDS_AGO TEXT: a line in the kernel's form, written by hand
    [ -e $out/kernel.$1 ] || boot_lines $1
    at=$(($(date +%s) - $2))
    case ${KERNEL_TIME:-iso} in
        iso) stamp=$(date -u -d @$at +%Y-%m-%dT%H:%M:%S,418203+00:00) ;;
        ctime) stamp="[$(date -u -d @$at '+%a %b %e %H:%M:%S %Y')]" ;;
        *) stamp="[$(cut -d. -f1 /proc/uptime | awk -v a=$2 '{printf "%5d.418203", $1 - a}')]" ;;
    esac
    echo "$stamp $3" | host_log $1
}
old_job() {   # old_job FILE ACT RANK: the log of a job of somebody else, which ended before; its dates are moved two days back
    ip netns add old; ip -n old link set lo up; ip -n old addr add 10.77.0.11/24 dev lo
    GLOO_SOCKET_IFNAME=lo ACT=$2:$3:7 LOG_HEAD=time ip netns exec old unshare --uts sh -c 'hostname n1; exec "$@"' sh \
        torchrun --standalone --nproc-per-node 2 train_ddp.py > $out/$1 2>&1
    ip netns del old
    sed -i -e 's/2026-11-26/2026-11-24/g' -e 's/^\(\[\?[IWE]\)1126/\11124/' $out/$1
    new_lines > /dev/null
}
pastes() {   # pastes WHEN HOST...: what the network's tools show on each host
    when=$1; shift
    for n in "$@"; do
        { echo "root@$n:~# ip -s link"; on $n ip -s link; echo "root@$n:~# ethtool $NIC"; on $n ethtool $NIC; } > $out/net.$n.$when.txt 2>&1
    done
}
processes() {   # processes HOST: the processes of the job on that host
    echo "root@$1:~# ps -o pid,ppid,stat,wchan:20,etime,rss,args"
    ps -o pid,ppid,stat,wchan:20,etime,rss,args -p "$(ip netns pids $1 | paste -sd,)"
}
environment() {   # environment HOST: a rank's environment, without what only these scripts use
    on $1 env | grep -vE '^(IN_LAB|TOOLS|NIC|BR|SW|PORT|KERNEL_[A-Z]+|ACT|OLDPWD|_)=' | sort
}
core_files() {
    cat > $out/cores.txt <<'END'
root@n0:~# ls -l /var/lib/systemd/coredump/
total 18120
-rw-r----- 1 root root  6291456 Nov 12 03:14 core.node_exporter.997.5f0c1a7e.811.1762917251000000.zst
-rw-r----- 1 root root 12263424 Nov 19 22:40 core.jupyter-lab.1004.5f0c1a7e.20991.1763592038000000.zst
END
}
checkpoint() { python3 -c "import os, sys; sys.stdout.buffer.write(b'PK\x03\x04\x00\x00' + os.urandom(${1:-3000}))" > $out/step_0000015.pt; }
nvidia_smi() {   # nvidia_smi HOST: a healthy node's, written by hand
    { echo "root@$1:~# nvidia-smi"
      echo "Thu Nov 26 05:02:11 2026       "
      echo "+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 570.124.06             Driver Version: 570.124.06     CUDA Version: 12.8     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|"
      gpu=0; for bus in 19 3B 4C 5D; do
        echo "|   $((gpu++))  NVIDIA H100 80GB HBM3          On  |   00000000:$bus:00.0 Off |                    0 |
| N/A   31C    P0             71W /  700W |       4MiB /  81559MiB |      0%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+"
      done
      echo "                                                                                         
+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|
|  No running processes found                                                             |
+-----------------------------------------------------------------------------------------+"; } > $out/nvidia-smi.$1.txt
}
