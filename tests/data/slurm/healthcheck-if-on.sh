#!/bin/bash
began=$EPOCHREALTIME
[ ! -e {folder}/settings/healthcheck ] || {folder}/gate/healthcheck.sh
status=$?
echo "$began" > {folder}/checked-$SLURMD_NODENAME.new
mv {folder}/checked-$SLURMD_NODENAME.new {folder}/checked-$SLURMD_NODENAME
exit $status
