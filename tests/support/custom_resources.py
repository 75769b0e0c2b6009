"""The objects of others' operators that laggard ships, as the API server is to know them.

The operators' own definitions are taken from the folder that KUBE_CRDS names, where there is one: `podmonitors.yaml`,
`prometheusrules.yaml` (Prometheus operator 0.93, monitoring.coreos.com) and `nodesets.yaml` (slurm-operator 1.3,
slinky.slurm.net), each as its project has it. Without the folder those below stand in for them. They know the fields
that laggard's objects have, with the types and limits that the operators give them, and no other: a field that is
misspelt is an error here as there.
"""

import os
from pathlib import Path
from typing import Any

import yaml

from support.paths import SHARED

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
DURATION: Schema = {"type": "string", "pattern": r"^(0|(\d+y)?(\d+w)?(\d+d)?(\d+h)?(\d+m)?(\d+s)?(\d+ms)?)$"}
ANYTHING: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
TEXTS: Schema = {"type": "object", "additionalProperties": TEXT}


def fields(required: tuple[str, ...] = (), **schemas: Schema) -> Schema:
    """An object with these fields. `FIELD_` is FIELD, where Python has the name for itself."""
    properties = {name.rstrip("_"): schema for name, schema in schemas.items()}
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}


def list_of(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


SECRET_KEY = fields(("key",), name=TEXT, key=TEXT)
REQUIREMENT = fields(("key", "operator"), key=TEXT, operator=TEXT, values=list_of(TEXT))
SCRAPED = fields(
    port=TEXT,
    scheme={"type": "string", "enum": ["http", "https"]},
    tlsConfig=fields(
        ca=fields(secret=SECRET_KEY), cert=fields(secret=SECRET_KEY), keySecret=SECRET_KEY, serverName=TEXT
    ),
    interval=DURATION,
    scrapeTimeout=DURATION,
    honorLabels=FLAG,
    relabelings=list_of(fields(sourceLabels=list_of(TEXT), targetLabel=TEXT)),
)
POD_MONITOR = fields(
    ("selector",),
    jobLabel=TEXT,
    selector=fields(matchLabels=TEXTS, matchExpressions=list_of(REQUIREMENT)),
    podMetricsEndpoints=list_of(SCRAPED),
)
RULE = fields(("expr",), record=TEXT, alert=TEXT, expr=TEXT, for_=DURATION, labels=TEXTS, annotations=TEXTS)
GROUP = fields(("name",), name={"type": "string", "minLength": 1}, interval=DURATION, rules=list_of(RULE))
NAMED_ONCE = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
PROMETHEUS_RULE = fields(groups={**list_of(GROUP), **NAMED_ONCE})
NODE_SET = fields(
    ("controllerRef",),
    controllerRef=fields(name=TEXT),
    scalingMode={"type": "string", "enum": ["DaemonSet", "StatefulSet"]},
    slurmd=ANYTHING,
    template=fields(metadata=fields(labels=TEXTS, annotations=TEXTS), spec=ANYTHING),
)

STAND_INS = {
    "podmonitors": ("monitoring.coreos.com", "v1", "PodMonitor", POD_MONITOR),
    "prometheusrules": ("monitoring.coreos.com", "v1", "PrometheusRule", PROMETHEUS_RULE),
    "nodesets": ("slinky.slurm.net", "v1beta1", "NodeSet", NODE_SET),
}


def definitions() -> list[dict[str, Any]]:
    """CustomResourceDefinitions, the operators' own where they are here."""
    folder = Path(os.environ.get("KUBE_CRDS") or SHARED / "lab" / "kubernetes" / "crds")
    real = {plural: folder / f"{plural}.yaml" for plural in STAND_INS}
    return [
        yaml.safe_load(real[plural].read_text()) if real[plural].is_file() else _stand_in(plural)
        for plural in STAND_INS
    ]


def _stand_in(plural: str) -> dict[str, Any]:
    group, version, kind, spec = STAND_INS[plural]
    schema = {"openAPIV3Schema": fields(spec=spec)}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
        },
    }
