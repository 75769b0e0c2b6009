# A Slurm of this lab: slurmctld, and a slurmd for each host.
D=/run/lab/slurm; mkdir -p $D/{run,log,state,spool}
cat > $D/slurm.conf <<CONF
ClusterName=lab
SlurmctldHost=$SW(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
SlurmctldPort=17817
StateSaveLocation=$D/state
SlurmdSpoolDir=$D/spool/%n
SlurmctldPidFile=$D/run/slurmctld.pid
SlurmdPidFile=$D/run/slurmd.%n.pid
SlurmctldLogFile=$D/log/slurmctld.log
SlurmdLogFile=$D/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MailProg=/bin/true
SlurmdParameters=config_overrides
NodeName=n[0-3] NodeHostname=$SW NodeAddr=127.0.0.1 Port=[18011-18014] CPUs=8 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=2000 State=UNKNOWN
PartitionName=train Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF=$D/slurm.conf
slurmctld -f $SLURM_CONF -c
for n in n0 n1 n2 n3; do slurmd -f $SLURM_CONF -N $n; done
until [ "$(sinfo -h -N -o %t | grep -c idle)" = 4 ]; do sleep .2; done
stop_slurm() { for p in $D/run/slurmd.*.pid $D/run/slurmctld.pid; do kill "$(cat $p)"; done; sleep 1; }
