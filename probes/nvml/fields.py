"""Reads values with nvmlDeviceGetFieldValues: many in one call, each with an error of its own."""

from __future__ import annotations

from typing import Any, Final

from laggard.probes.nvml.model import error_name

_PLAIN: Final = {  # NVML_FI_DEV_* of nvml.h
    "memory_temperature_celsius": 82,
    "slowdown_margin_celsius": 194,
    "gpu_max_margin_celsius": 196,
    "recovery_action": 230,
}
_THROTTLED: Final = {"sw_thermal": 269, "hw_thermal": 270, "hw_power_brake": 271}  # nanoseconds in all
_LINK_ERRORS: Final = {"replay": 161, "recovery": 162, "crc": 163}  # for the link in scopeId
_LINK_TOTALS: Final = {"replay": 52, "recovery": 59, "crc": 38}
_POLICIES: Final = {"thermal": 1, "board_limit": 3}  # NVML_PERF_POLICY_*
_MEMBERS: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # by NVML_VALUE_TYPE_*


def read_fields(nvml: Any, handle: Any, links: int) -> tuple[dict[str, Any], dict[str, str]]:
    """The values and the errors, by the names of Gpu's fields. `links`: how many NVLinks the GPU has."""
    ids: list[Any] = [*_PLAIN.values(), *_THROTTLED.values(), *_LINK_TOTALS.values()]
    ids += [(field, link) for field in _LINK_ERRORS.values() for link in range(links)]
    try:
        answers = _answers(nvml, handle, ids)
    except nvml.NVMLError as error:
        names = (*_PLAIN, "throttled_nanoseconds", *(("link_errors",) if links else ()))
        return {}, {name: error_name(error.value) for name in names}
    values: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for name, field in _PLAIN.items():
        answer = answers[field, 0]
        if isinstance(answer, str):
            errors[name] = answer
        else:
            values[name] = answer
    values["throttled_nanoseconds"] = _known({name: answers[field, 0] for name, field in _THROTTLED.items()})
    if links:
        found = {name: _by_link(answers, name, links) for name in _LINK_ERRORS}
        if any(found.values()):
            values["link_errors"] = {name: counts for name, counts in found.items() if counts}
        else:
            errors["link_errors"] = str(answers[_LINK_TOTALS["replay"], 0])
    return values, errors


def read_violations(nvml: Any, handle: Any, values: dict[str, Any], errors: dict[str, str]) -> None:
    """Reads the throttle counters of older drivers into `values` and `errors`. They only tell heat from the limits of
    the board."""
    found: dict[str, int] = {}
    for name, policy in _POLICIES.items():
        try:
            found[name] = int(nvml.nvmlDeviceGetViolationStatus(handle, policy).violationTime)
        except nvml.NVMLError as error:
            errors["throttled_nanoseconds"] = error_name(error.value)
    if found:
        values["throttled_nanoseconds"] = found
        errors.pop("throttled_nanoseconds", None)


def _answers(nvml: Any, handle: Any, ids: list[Any]) -> dict[tuple[int, int], Any]:
    """The number, or the name of the error, by field and scope."""
    answers: dict[tuple[int, int], Any] = {}
    for value in nvml.nvmlDeviceGetFieldValues(handle, ids):
        known = value.nvmlReturn == 0 and value.valueType < len(_MEMBERS)
        answer = getattr(value.value, _MEMBERS[value.valueType]) if known else error_name(value.nvmlReturn)
        answers[value.fieldId, value.scopeId] = answer
    return answers


def _by_link(answers: dict[tuple[int, int], Any], name: str, links: int) -> tuple[int, ...]:
    """The errors called `name` by link, else the total of all links; empty where the GPU counts neither."""
    by_link = [answers[_LINK_ERRORS[name], link] for link in range(links)]
    if all(isinstance(count, int) for count in by_link):
        return tuple(by_link)
    total = answers[_LINK_TOTALS[name], 0]
    return (total,) if isinstance(total, int) else ()


def _known(values: dict[str, Any]) -> dict[str, int]:
    return {name: value for name, value in values.items() if isinstance(value, int)}
