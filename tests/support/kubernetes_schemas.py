"""Kubernetes' own schemas, 1.25 to 1.37, as kubernetes-validate ships them, kept from one object to the next: that
package reads a megabyte for each."""

import functools
import re
from collections.abc import Iterable
from typing import Any

from jsonschema import Draft202012Validator, ValidationError
from kubernetes_validate.utils import schema_contents
from referencing import Registry, Resource

VERSIONS = tuple(f"1.{minor}" for minor in range(25, 38))
ADMISSION = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
"""What bounds the controller: v1 since 1.30."""


def has_admission_policies(version: str) -> bool:
    return VERSIONS.index(version) >= VERSIONS.index("1.30")


def unknown_kinds(items: Iterable[dict[str, Any]], version: str) -> set[str]:
    """The kinds that this version does not have."""
    return {item["kind"] for item in items if _schema(_file(item), version) is None}


def errors_by_schema(items: Iterable[dict[str, Any]], version: str) -> list[str]:
    """What is wrong with each item of a kind that this version has; a key that it does not know is an error."""
    errors = []
    for item in items:
        schema = _schema(_file(item), version)
        if schema is None:
            continue
        try:
            Draft202012Validator(schema, registry=_registry(version)).validate(item)
        except ValidationError as error:
            errors.append(f"{item['kind']} {item['metadata']['name']}: {error.message}")
    return errors


def _file(item: dict[str, Any]) -> str:
    version = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", item["apiVersion"])  # rbac.authorization.k8s.io/v1: rbac-v1
    return f"{item['kind'].lower()}-{version}.json"


@functools.lru_cache(maxsize=64)
def _schema(file: str, version: str) -> Any:
    try:
        return schema_contents(f"kubernetes-json-schema/v{version}.0-local-strict/{file}", version)
    except FileNotFoundError:
        return None


@functools.lru_cache(maxsize=1)
def _registry(version: str) -> Registry[Any]:
    definitions: Registry[Any] = Resource.from_contents(_schema("_definitions.json", version)) @ Registry()
    return definitions.crawl()
