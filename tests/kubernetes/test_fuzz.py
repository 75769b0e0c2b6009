"""The controller's endpoints asked at random, while neither an API server nor a collector answers it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from support.fuzz import described_paths, expect_as_described, expect_no_defect
from support.ports import free_port


@pytest.mark.slow
def test_each_answer_is_as_described_and_none_a_defect(tmp_path: Path) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    config = tmp_path / "controller.yaml"
    config.write_text(f"collector: {nobody}\napi_server: {nobody}\nca_file: ''\ninterval_seconds: 0.2\n")
    command = [sys.executable, "-m", "laggard", "kubernetes", "controller", "--config", str(config)]
    command += ["--web.listen-address", "127.0.0.1:0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr
        line = process.stderr.readline()
        found = re.search(r"http://[\d.]+:\d+", line)
        assert found, line + process.stderr.read()
        said = httpx.get(f"{found[0]}/nothing", trust_env=False).text
        assert sorted(re.findall(r"/[-\w/]+", said)) == sorted(described_paths("controller"))
        expect_as_described("controller", found[0], tmp_path)
        expect_no_defect(found[0], (*described_paths("controller"), "/nothing"), examples=50)
    finally:
        process.terminate()
        log = process.communicate(timeout=300)[1]
    assert "Traceback" not in log and "a defect in laggard" not in log
    assert process.returncode == 0
