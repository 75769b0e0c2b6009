# A rank under Slurm dies of a segmentation fault. Four hosts, one log of srun --label.
KERNEL_TIME=raw; . "$(dirname "$0")/lab.sh"
for n in n0 n1 n2 n3; do said_by_hand $n 900 'EXT4-fs (nvme1n1p1): mounted filesystem with ordered data mode. Quota mode: none.'; done
hosts n0 n1 n2 n3; . "$here/slurm.sh"
export ACT=segfault:1:22 MASTER_ADDR=n0 MASTER_PORT=29500 LOG_HEAD=time WORLD_SIZE=4
srun -N4 -n4 --label -J ddp-s bash -c 'export RANK=$SLURM_PROCID LOCAL_RANK=0; exec ip netns exec n$RANK unshare --uts \
    sh -c "hostname n$RANK; exec /opt/venv/bin/python train_ddp.py"' > $out/slurm-1.out 2>&1
scontrol show job 1 > $out/scontrol-show-job.txt; sinfo -N -l > $out/sinfo.txt
cp /run/lab/slurm/log/slurmctld.log $out/; stop_slurm
split_lines n1
for n in n0 n1 n2 n3; do mv $out/kernel.$n $out/dmesg.$n; done
mv $out/kernel.$SW $out/switch-$SW.log
core_files; checkpoint
cat > $out/sacct.txt <<END
JobID           JobName  Partition      State ExitCode        NodeList 
------------ ---------- ---------- ---------- -------- --------------- 
1                 ddp-s      train     FAILED     11:0         n[0-3] 
1.0                bash                FAILED     11:0         n[0-3] 
END
echo "srun output is slurm-1.out. The EXT4 line is the scratch disk, mounted by the prolog." > $out/README.txt
keep kill-segfault
