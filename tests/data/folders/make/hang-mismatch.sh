# A rank waits in broadcast while the others are in all_reduce. One host, torchrun, recorded by `laggard run`,
# flight recorders of gloo as JSON.
KERNEL_TIME=raw; . "$(dirname "$0")/lab.sh"
said_by_hand n0 300 'nvme nvme1: 16/0/0 default/read/poll queues'
hosts n0
export ACT=other_collective:2:16 TIMEOUT_S=40 GLOO_SOCKET_IFNAME=lo LOG_HEAD=time TORCH_DISTRIBUTED_DEBUG=INFO
export TORCH_FR_BUFFER_SIZE=200 FR_DIR=$out/flight_recorder
mkdir -p $FR_DIR $out/recording
on n0 laggard run --record $out/recording torchrun --nproc-per-node 4 --master-port 29500 train_own.py > $out/stdout.log 2>&1
split_lines n0; mv $out/kernel.n0 $out/dmesg.txt; rm $out/kernel.$SW
core_files; checkpoint; environment n0 > $out/env.txt
echo "Own loop, 4 ranks on n0. The user merged a branch yesterday." > $out/README.md
keep hang-mismatch
