"""The nodes to leave out as Kubernetes' pods are told: a nodeAffinity, for the template of a Job. Pure.

The name itself is matched, and not the label kubernetes.io/hostname, which a kubelet may have another value for. Of a
field one value alone can be named in a requirement; all requirements of a term have to hold
(https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/, NodeSelectorTerm.matchFields).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

_HEAD = """affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        - matchFields:
"""


def node_affinity(names: Sequence[str]) -> str:
    """Empty where there are no names."""
    if not names:
        return ""
    rows = (f"            - {{key: metadata.name, operator: NotIn, values: [{json.dumps(name)}]}}\n" for name in names)
    return _HEAD + "".join(rows)
