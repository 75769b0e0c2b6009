# A rank turns in an endless loop (state R), the others wait in the gradients' all_reduce. One host, Lightning; only a log, top and ps.
KERNEL_TIME=iso; . "$(dirname "$0")/lab.sh"
hosts n2
export ACT=spin:3:60 GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=1 COLUMNS=140
on n2 /opt/venv/bin/python train_lightning.py > /run/lab/lightning.log 2>&1 & job=$!
until_said 'rank 3 of 4 is process' /run/lab/lightning.log; sleep 70
cp /run/lab/lightning.log $out/run.log
pids=$(ip netns pids n2 | paste -sd,)
{ echo "ml@n2:~$ top -b -n 1 -c -u ml"; top -b -n 2 -d 4 -c -w 140 -p $pids | awk '/^top - /{ n++ } n == 2' | sed 's/ root  / ml    /'; } > $out/top.txt
{ echo "ml@n2:~$ ps -o pid,ppid,stat,wchan:20,time,etime,args"; ps -o pid,ppid,stat,wchan:20,time,etime,args -p $pids; } > $out/ps.txt
sleep 20; { echo "ml@n2:~$ ps -o pid,ppid,stat,wchan:20,time,etime,args"; ps -o pid,ppid,stat,wchan:20,time,etime,args -p $pids; } > $out/ps-later.txt
kill -KILL $(ip netns pids n2); wait $job
rm $out/kernel.*
echo "epoch 0 takes 2 minutes as a rule, today it does not end. nothing in the log. it is still running, shall I kill it?" > $out/msg.txt
keep hang-spin
