"""Folders of what real jobs left: four ranks under torchrun with gloo, on one host or on two network namespaces, each
with a fault that was planted. `files/` is the folder, `expect.json` what is to be answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.paths import DATA

JOB_FOLDERS = DATA / "job_folders"


def folder_expectations() -> dict[str, dict[str, Any]]:
    return {path.parent.name: json.loads(path.read_text()) for path in sorted(JOB_FOLDERS.glob("*/expect.json"))}


def files_of(name: str) -> Path:
    return JOB_FOLDERS / name / "files"
