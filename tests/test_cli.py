"""What the command line does before any command runs."""

import gc
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from laggard.cli import main, whole_parser, words_now
from laggard.commands import COMMANDS, MOVED, PARTS, examples
from laggard.kit import left


@pytest.mark.parametrize(
    ("words", "collects"), [(["healthcheck", "--only", "limits"], False), (["collector", "metrics", "list"], True)]
)
def test_only_the_gate_runs_without_the_garbage_collector(
    words: list[str], collects: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["laggard", *words])
    try:
        main()
        assert gc.isenabled() == collects
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "missing, words, extra",
    [
        ("starlette", ["collector", "--check-config"], "collector"),
        ("uvicorn", ["collector", "--check-config"], "collector"),
    ],
)
def test_a_command_without_its_packages_names_the_extra(missing: str, words: list[str], extra: str) -> None:
    script = f"import sys; sys.modules[{missing!r}] = None; from laggard.cli import main; sys.exit(main({words!r}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    said = f"laggard: this needs packages of the extra `{extra}`: pip install 'laggard[{extra}]'\n"
    assert done.stderr == said


@pytest.mark.parametrize("name", left.COMMANDS)
def test_a_command_that_left_names_in_one_line_what_serves_instead(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert name not in {command.name for command in COMMANDS}
    assert main([name, "--json"]) == 64
    assert capsys.readouterr().err == f"laggard: `laggard {name}` left: {left.COMMANDS[name]}\n"


def test_the_reader_imports_nothing_of_the_agent_but_its_own() -> None:
    words = ["agent", "--log.level", "error", "--reader", "--socket", "/proc/nowhere/s", "--allow-user", "0"]
    script = (
        f"import sys; from laggard.cli import main; status = main({words!r})\n"
        "print(status, *sorted(name for name in sys.modules if name.startswith('laggard.agent.')))\n"
        "print(sorted({'numpy', 'ssl', 'httpx', 'asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    first, second = done.stdout.splitlines()
    own = [name for name in first.split()[1:] if not name.startswith("laggard.agent.reader")]
    assert first.startswith("64 ") and second == "[]", done.stderr
    assert not [name for name in own if name in ("laggard.agent.main", "laggard.agent.settings")], own


def test_the_agents_help_lists_its_parts_and_each_part_has_flags_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    for words, flag in ((["agent", "--help"], "--kubernetes-job"), (["agent", "--reader", "--help"], "--allow-user")):
        with pytest.raises(SystemExit):
            main(words)
        assert flag in capsys.readouterr().out


@pytest.mark.parametrize("end", ["", "=x"])
@pytest.mark.parametrize("name", left.FLAGS)
def test_a_flag_that_left_names_in_one_line_what_serves_instead(
    name: str, end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(f"{name}{end}".split()) == 64
    said = capsys.readouterr().err
    assert said.startswith(f"laggard: `laggard {name}") and said.endswith(f" left: {left.FLAGS[name]}\n"), said


@pytest.mark.parametrize("name", left.SETTINGS)
def test_a_key_that_left_names_in_one_line_what_serves_instead(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "collector.yaml"
    config.write_text(f"{name}: x\n")
    assert main(["collector", "--config", str(config), "--check-config"]) == 64
    assert capsys.readouterr().err == f"laggard: {config}: the key `{name}` left: {left.SETTINGS[name]}\n"


def test_the_help_of_all_commands_fits_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert len(COMMANDS) <= 18 and len(lines) <= 23 and max(map(len, lines)) <= 80
    assert all(any(f" {command.name} " in line for line in lines) for command in COMMANDS)


def test_the_examples_of_each_command_are_taken_by_its_parser() -> None:
    parser = whole_parser()
    for command in COMMANDS:
        shown = [line for line in examples(command.name) if not line.startswith("#")]
        assert shown, f"{command.name} has no example"
        for line in shown:
            (words,) = re.findall(r"laggard ([^)>]*)", line)
            _, rest = parser.parse_known_args(shlex.split(words))
            assert not [word for word in rest if word.startswith("-")], line


@pytest.mark.parametrize("old", MOVED)
def test_a_command_that_moved_still_runs_and_says_where_it_is(old: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert MOVED[old] in {part.name for part in PARTS}
    assert words_now([old, "x"]) == [MOVED[old], "x"]
    assert capsys.readouterr().err == f"laggard: `laggard {old}` is `laggard {MOVED[old]}` now\n"


def test_quiet_prints_nothing_and_keeps_the_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["findings", "list", "-q"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["findings", "list", "-o", "json"]) == 0
    assert capsys.readouterr().out.startswith("{")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("healthcheck", "--profil", "x"), "unknown argument '--profil': did you mean --profile?"),
        (("healthcheck", "x"), "unknown argument 'x'"),
        (("collector", "--listen-adress=:1"), "unknown argument '--listen-adress"),
    ],
)
def test_an_unknown_word_is_named_and_what_is_near(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 64
    assert said in " ".join(capsys.readouterr().err.split())
