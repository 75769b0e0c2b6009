# A rank asks for more memory than there is: DefaultCPUAllocator: can't allocate memory. One host, recorded by `laggard run`.
KERNEL_TIME=iso; . "$(dirname "$0")/lab.sh"
said_by_hand n1 5000 'usb 2-1: new SuperSpeed USB device number 4 using xhci_hcd'
hosts n1
export ACT=huge_batch:0:17 TIMEOUT_S=60 GLOO_SOCKET_IFNAME=lo LOG_HEAD=json
mkdir -p $out/recording
on n1 laggard run --record $out/recording torchrun --nproc-per-node 4 --master-port 29500 --log-dir $out/logs --redirects 3 train_own.py > $out/launcher.txt 2>&1
split_lines n1; mv $out/kernel.n1 $out/dmesg.txt; rm $out/kernel.$SW
core_files; checkpoint; nvidia_smi n1; on n1 free -h > $out/free.txt
echo "4 ranks on n1; free.txt was taken after the job had gone." > $out/readme.txt
keep oom-allocator
