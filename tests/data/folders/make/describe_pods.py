"""Writes by hand what `kubectl describe` says of one pod which ended by memory: describe_pods.py INDEX FOLDER."""

import datetime
import pathlib
import sys

POD = """Name:             tts-worker-{index}
Namespace:        speech
Node:             n{host}/10.77.0.1{host}
Labels:           app=tts-worker
                  statefulset.kubernetes.io/pod-name=tts-worker-{index}
Status:           Running
Controlled By:    StatefulSet/tts-worker
Containers:
  main:
    Image:          registry.local/speech/tts-train:2026.11.3
    State:          Waiting
      Reason:       CrashLoopBackOff
    Last State:     Terminated
      Reason:       {reason}
      Exit Code:    {code}
      Finished:     {ended}
    Ready:          False
    Restart Count:  1
    Limits:
      memory:  900Mi
    Environment:
      WORLD_SIZE:   4
      RANK:         {index}
Events:
  Type     Reason   Age                From     Message
  ----     ------   ----               ----     -------
  Normal   Pulled   3m (x2 over 6m)    kubelet  Container image already present on machine
  Normal   Started  3m (x2 over 6m)    kubelet  Started container main
  Warning  BackOff  40s (x3 over 2m)   kubelet  Back-off restarting failed container main in pod tts-worker-{index}
"""

if __name__ == "__main__":
    killed, folder = int(sys.argv[1]), pathlib.Path(sys.argv[2])
    now = datetime.datetime.now(datetime.UTC)
    for index in (0, killed):
        reason, code = ("OOMKilled", 137) if index == killed else ("Error", 1)
        ended = f"{now:%a, %d %b %Y %H:%M:%S} +0000"
        text = POD.format(index=index, host=(index + 1) % 4, reason=reason, code=code, ended=ended)
        (folder / f"describe.tts-worker-{index}.txt").write_text(text)
