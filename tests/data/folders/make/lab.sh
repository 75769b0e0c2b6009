# Four "hosts" for real jobs. Each script sources this file as root: the first time it starts itself again in name spaces
# of its own (mounts, network, names), so that everything it makes is gone when it ends.
# A host is a network name space n0..n3 with a bridge br0, whose port eth0 leads to a port of the switch "leaf1".
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../../.." && pwd)
tools=${TOOLS:-/usr}   # where ethtool, nft and py-spy stand, where they are not installed
if [ -z "${IN_LAB:-}" ]; then
    for name in TOOLS NIC BR SW PORT KERNEL_DROP KERNEL_KEEP; do [ -n "${!name:-}" ] && set -- "$@" "$name=${!name}"; done
    exec env -i IN_LAB=1 PATH="$PATH" LANG=C.UTF-8 TZ=UTC USER=ml "$@" \
        unshare --mount --propagation private --net --uts --ipc bash "$(realpath "$0")"
fi
set -u
NIC=${NIC:-eth0} BR=${BR:-br0} SW=${SW:-leaf1} PORT=${PORT:-swp}   # the names of interfaces, bridges, switch and its ports
venv=$(realpath "$root/.venv")
mkdir -p /run/lab /run/netns && mount -t tmpfs tmpfs /run/netns
mount -t tmpfs tmpfs /run/lab && mkdir /run/lab/cg /run/lab/dev && mount -t cgroup -o memory cgroup /run/lab/cg
mount -t tmpfs tmpfs /opt && mkdir -p /opt/venv /opt/bin && mount --bind "$venv" /opt/venv
mount -t tmpfs tmpfs /home && mkdir -p /home/ml/train && cp "$here"/jobs/* /home/ml/train
mkdir -p /run/lab/tools && cp "$tools"/*bin/{ethtool,nft,py-spy} /run/lab/tools 2>/dev/null
mount -t tmpfs tmpfs /tmp; mount -t tmpfs tmpfs /dev/shm
for name in torchrun deepspeed accelerate laggard; do
    sed '1s,.*,#!/opt/venv/bin/python,' "$venv/bin/$name" > /opt/bin/$name && chmod +x /opt/bin/$name
done
echo "127.0.0.1 localhost
10.77.0.1 $SW
10.77.0.10 n0
10.77.0.11 n1
10.77.0.12 n2
10.77.0.13 n3" > /run/lab/hosts
mount --bind /run/lab/hosts /etc/hosts
unset PYTHONDONTWRITEBYTECODE
export HOME=/home/ml PATH=/opt/bin:/usr/sbin:/usr/bin:/sbin:/bin:/run/lab/tools PYTHONUNBUFFERED=1
export DS_ACCELERATOR=cpu GLOO_SOCKET_IFNAME=$BR
out=/home/ml/out; mkdir $out; cd /home/ml/train || exit 1
hostname $SW; ip link set lo up
trap 'jobs -p | xargs -r kill -KILL 2>/dev/null; for n in n0 n1 n2 n3; do ip netns pids $n 2>/dev/null | xargs -r kill -KILL; done' EXIT

kernel() { if [ "${KERNEL_TIME:-iso}" = raw ]; then dmesg; else dmesg --time-format ${KERNEL_TIME:-iso}; fi | sed 's/6\.18\.44-[a-z0-9-]*/6.18.44/' ; }   # what the kernel has said until now
last_time() { dmesg | tail -n 1 | awk -F '[][]' '{ print $2 }'; }   # in seconds since the boot; old lines leave the ring
mark=$(last_time)
new_lines() {   # what the kernel has said since the last call
    count=$(dmesg | awk -F '[][]' -v mark=$mark '$2 + 0 > mark { n++ } END { print n + 0 }'); mark=$(last_time)
    kernel | tail -n $count | grep -v 'laggard[0-9]\|lg-' | grep -Ev "${KERNEL_DROP:-^$}" | grep -E "${KERNEL_KEEP:-.}"
}
host_log() { cat >> "$out/kernel.$1"; }

boot_lines() { kernel | grep -E 'BIOS-e820|NX \(|NUMA|APIC: |EXT4' | host_log $1; }   # the first lines of a host's log
hosts() {   # hosts n0 n1 ...: what the kernel says meanwhile goes into kernel.NAME and kernel.$SW
    ip link add $SW type bridge; ip link set $SW up; ip addr add 10.77.0.1/24 dev $SW
    for n in "$@"; do
        [ -e $out/kernel.$n ] || boot_lines $n
        i=${n#n}; ip netns add $n; ip link add $PORT$i type veth peer name $NIC netns $n
        ip link set $PORT$i master $SW
        ip -n $n link set lo up; ip -n $n link add $BR type bridge; ip -n $n link set $NIC master $BR
        ip -n $n link set $NIC up; ip -n $n link set $BR up; ip -n $n addr add 10.77.0.1$i/24 dev $BR; ip link set $PORT$i up
        sleep 1.5; split_lines $n
    done
}
split_lines() {   # what the kernel has said since the last call: of the switch, or of the host $1
    new_lines > /run/lab/new
    grep -E "$SW|$PORT[0-9]" /run/lab/new | host_log $SW; grep -vE "$SW|$PORT[0-9]" /run/lab/new | host_log $1
}
on() { n=$1; shift; ip netns exec $n unshare --uts sh -c 'hostname $0; exec "$@"' $n "$@"; }
four_torchruns() {   # four_torchruns LOG_PATTERN ARGS: one rank on each host, in the background
    pattern=$1; shift
    for i in 0 1 2 3; do
        on n$i torchrun --nnodes 4 --node-rank $i --nproc-per-node 1 --master-addr 10.77.0.10 --master-port 29500 \
            "$@" > "$(printf "$pattern" $i)" 2>&1 &
    done
}
rank_pid() { grep -rhoE "rank $1 of 4 is process [0-9]+" "$2" | head -1 | grep -oE '[0-9]+$'; }   # rank_pid RANK LOGS
until_said() { for _ in $(seq 360); do grep -rqs -- "$1" $2 && return; sleep 0.5; done; echo "nobody said $1" >&2; exit 1; }
keep() {   # keep NAME: out/ becomes the folder NAME, without this machine's paths
    target=$here/../$1; rm -rf "$target"; mkdir -p "$target"; cp -r $out/. "$target"
    find "$target" -type f -exec grep -Il . {} + | xargs sed -i -e "s,$root/src/,/opt/venv/lib/python3.11/site-packages/,g" \
        -e "s,$root/\.venv,/opt/venv,g" -e "s,$root,/home/ml/laggard,g" -e 's,/root/\.pyenv/versions/3\.11\.7,/usr/local,g' \
        -e "s/$(cat /proc/sys/kernel/random/boot_id)/00000000-1111-4222-8333-444444444444/g"
    du -sk "$target"
}
. "$here/beside.sh"
