"""The wheels that gpu-check takes along: which, and that they change no site-packages."""

from __future__ import annotations

import os
import re
import sys
import zipfile
from pathlib import Path

import pytest
from support.paths import REPOSITORY


def wheel(folder: Path, name: str, version: str = "1.0") -> None:
    """A wheel with one module of that name."""
    about = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": "HERE = True\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{about}/RECORD"] = "".join(f"{path},,\n" for path in (*files, f"{about}/RECORD"))
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)


def test_what_this_python_lacks_is_installed_for_the_parts_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gpu_check import main, outcome

    for name in ("laggard_travels", "msgspec"):
        wheel(tmp_path / "wheels", name)
    monkeypatch.setenv("PYTHONPATH", "/of/the/user")
    main.use_wheels(tmp_path / "wheels", tmp_path / "python")
    said = capsys.readouterr().err
    assert "laggard_travels comes from" in said and "is installed" in said, said
    assert sorted(path.name for path in (tmp_path / "python").glob("*.py")) == ["laggard_travels.py"]
    assert outcome.python_path().split(os.pathsep)[-2:] == ["/of/the/user", str(tmp_path / "python")]
    assert not [folder for folder in sys.path if Path(folder, "laggard_travels.py").exists()]


def test_a_wheel_that_does_not_fit_is_told_and_the_others_come(tmp_path: Path) -> None:
    from gpu_check import wheels

    wheel(tmp_path / "wheels", "laggard_travels")
    (tmp_path / "wheels" / "laggard_of_another-1.0-cp27-none-win32.whl").write_bytes(b"")
    said = list(wheels.install(tmp_path / "wheels", tmp_path / "python"))
    assert "laggard_of_another does not install" in said[0] and "laggard_travels comes from" in said[1], said


def test_the_folder_that_travels_has_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gpu_check import main, wheels

    wheel(tmp_path / "index", "laggard_travels")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setattr(wheels, "NEEDED", ("laggard-travels>=0.5", "laggard-of-old; python_version < '3.11'"))
    words = ["--carry", str(tmp_path / "carried"), "--for-python"]
    assert main.main([*words, "3.12"]) == 0
    assert [path.name for path in (tmp_path / "carried").iterdir()] == ["laggard_travels-1.0-py3-none-any.whl"]
    assert "1 wheels for Python 3.12" in capsys.readouterr().out
    assert main.main([*words, "3.10"]) == 1 and "laggard-of-old" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main.main([*words, "twelve"])


def test_the_list_is_that_of_the_package() -> None:
    from gpu_check import wheels

    text = (REPOSITORY / "pyproject.toml").read_text()

    def listed(start: str) -> set[str]:
        block = text[text.index(start) :]
        return set(re.findall(r'"([^"]+)"', re.sub("#.*", "", block[: block.index("]")])))

    assert set(wheels.NEEDED) == listed("\ndependencies = [") | listed("\nlocate = [")
