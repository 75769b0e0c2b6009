# A rank of a torchrun with a tree of logs is ended by SIGKILL from outside. One host.
KERNEL_TIME=ctime; . "$(dirname "$0")/lab.sh"
old_job old_run_1124.log invalid_pointer 0
said_by_hand n0 5400 'usb 1-14.1: new high-speed USB device number 5 using xhci_hcd'
said_by_hand n0 5399 'usb 1-14.1: New USB device found, idVendor=046b, idProduct=ff01, bcdDevice= 1.00'
hosts n0
on n0 torchrun --nnodes 1 --nproc-per-node 4 --master-port 29500 --log-dir $out/logs --tee 3 train_ddp.py > $out/torchrun.log 2>&1 &
until_said 'step 15' $out/torchrun.log
kill -KILL $(rank_pid 2 $out/torchrun.log); wait $!
split_lines n0; rm $out/kernel.$SW; mv $out/kernel.n0 $out/dmesg-T.n0.txt
core_files; checkpoint; nvidia_smi n0
echo "Job pretrain-ddp-s on n0, 4 ranks. Died this morning, the user says that nothing was changed.
old_run_1124.log is from Tuesday, I put it here because the user asked whether it is the same." > $out/README
keep kill-sigkill
