"""Every command line of the docs is run by a test, or taken by laggard's own parser, or on a list that was reviewed."""

from __future__ import annotations

import argparse
import functools
import re
from pathlib import Path

import pytest
from support.docs_commands import NAMES, Line, command_lines, laggard_words, simple_commands
from support.paths import REPOSITORY

from laggard.cli import whole_parser
from laggard.kit.errors import UsageError

PAGES = [
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    *sorted((REPOSITORY / "docs").rglob("*.md")),
]

RUN = {
    "docs/start/training.md": "tests/end_to_end/test_first_answer.py::test_a_training_job_gets_its_first_answers",
    "docs/start/slurm.md": "tests/slurm/test_first_answer.py::test_a_cluster_gets_its_first_answers",
    "docs/kubernetes.md": "tests/kubernetes/test_first_answer.py::test_a_cluster_gets_its_first_answers",
    "docs/start/kubernetes.md": "tests/kubernetes/test_first_answer.py::test_a_cluster_gets_its_first_answers",
    "docs/tasks/died.md": "tests/end_to_end/test_tasks.py::test_a_dead_job_is_diagnosed",
    "docs/tasks/deepspeed.md": "tests/end_to_end/test_tasks.py::test_a_deepspeed_job_is_watched",
    "docs/tasks/profiler.md": "tests/end_to_end/test_tasks.py::test_profiler_traces_name_the_slow_rank",
    "docs/tasks/hang.md": "tests/end_to_end/test_tasks.py::test_a_hang_is_read",
    "docs/tasks/tune.md": "tests/end_to_end/test_tasks.py::test_a_training_is_tuned",
    "docs/tasks/exclude.md": "tests/slurm/test_suspects.py::test_the_page_is_as_a_reader_goes_through_it",
    "docs/tasks/slurm-gate.md": "tests/slurm/test_gate_page.py::test_an_unfit_node_is_drained_and_comes_back",
}
"""The pages whose fenced commands a test runs (support/transcript.py), and the test."""

INSTALLED = "make install-check runs the lines of docs/install.md in fresh Debians"
_MANIFESTS = "tests/kubernetes/test_manifests.py"
MANIFESTS = f"{_MANIFESTS}::test_the_api_server_takes_every_manifest_strictly"
BOARDS = "tests/dashboards/test_provisioning.py::test_the_documented_lines_put_the_boards_where_grafana_looks"
RULES = "tests/deploy/test_prometheus.py::test_promtool_takes_the_rules_and_their_tests_pass"
FIRST_ANSWER = "tests/kubernetes/test_first_answer.py::test_a_cluster_gets_its_first_answers"
PLUGIN = "tests/kubernetes/test_kubectl_laggard.py::test_it_asks_through_a_real_api_server"
A_CLUSTER = "needs a cluster with containers"
BACKUP = "tests/collector/incidents/test_backup.py::test_a_copy_of_a_live_database_is_a_whole_one"
PG_DUMP = "tests/collector/incidents/test_backup.py::test_a_dump_is_restored_into_a_fresh_postgresql"
SWITCH = "tests/test_wheelhouse.py::test_a_link_is_switched_without_a_moment_in_which_laggard_is_gone"
ROUTES = "tests/deploy/test_alertmanager_routes.py::test_an_alert_goes_to_whom_the_example_means"
RUNBOOKS = "tests/deploy/test_alertmanager_routes.py::test_runbooks_get_an_address_by_the_pages_command"
GPUS = "needs GPUs, or a SLURM cluster that has them"

REVIEWED = {
    ". .venv/bin/activate": "every environment that make demo has made has this file",
    "/etc/laggard/slurm/check.sh": "tests/slurm/test_first_answer.py::test_a_cluster_gets_its_first_answers",
    "/opt/laggard/bin/pip install": INSTALLED,
    "/opt/laggard/bin/python3 -c": BACKUP,
    "/opt/laggard-NEW/bin/pip install": INSTALLED,
    "amtool check-config": "tests/deploy/test_alertmanager_routes.py::test_amtool_takes_it",
    "amtool config routes test": ROUTES,
    "export TORCH_FR_BUFFER_SIZE=2000": GPUS,
    "git": "needs the key of the person who publishes, and the public repository",
    "helm install": FIRST_ANSWER,
    "helm template": FIRST_ANSWER,
    "helm upgrade": FIRST_ANSWER,
    "sbatch --exclude=$(laggard exclude)": "tests/slurm/test_suspects.py, where a job is submitted so",
    "install": INSTALLED,
    "install -m 600 -o laggard": BACKUP,
    "install -D -t /etc/grafana/provisioning/dashboards": BOARDS,
    "install -D -t /etc/prometheus/laggard": RULES,
    "install -D -t /var/lib/grafana/dashboards/laggard": BOARDS,
    "install -m 755 deploy/kubernetes/kubectl-laggard": PLUGIN,
    "curl -s http://n0:25999/stacks": "tests/diagnose/test_evidence.py::test_the_rank_and_the_reason_are_told",
    "echo {}": INSTALLED,
    "kubectl annotate": f"{_MANIFESTS}::test_the_taint_and_the_annotation_have_one_name_everywhere",
    "kubectl apply -f docs/examples/cert-manager.yaml": f"{_MANIFESTS}::test_the_examples_hold_against_the_schemas",
    "kubectl create namespace": MANIFESTS,
    "kubectl get nodes": FIRST_ANSWER,
    "kubectl label namespace": MANIFESTS,
    "kubectl laggard": PLUGIN,
    "kubectl -n laggard exec": A_CLUSTER,
    "kubectl -n laggard port-forward": A_CLUSTER,
    "kubectl -n laggard rollout": A_CLUSTER,
    "kubectl taint nodes": FIRST_ANSWER,
    "ln -s laggard-NEW": SWITCH,
    "make": "its targets are looked up in the Makefile",
    "mv -T": SWITCH,
    "openssl rand": "is OpenSSL's own: 44 characters, which a file of tokens may have",
    "pip install --no-index": "tests/test_wheelhouse.py::test_it_suffices_without_a_network",
    "pip install .": INSTALLED,
    "pip install .[locate]": "make install-check installs each extra by itself",
    "pip install laggard[tune]": "make install-check installs each extra by itself",
    "pip install laggard[mcp]": "make install-check installs each extra by itself",
    "pip install laggard[postgres]": "make install-check installs each extra by itself",
    "kubectl -n laggard create secret": A_CLUSTER,
    "podman push": "needs a registry",
    "podman build": "needs podman and its registry: what it copies is looked up below",
    "printf targets:": INSTALLED,
    "pg_dump": PG_DUMP,
    "promtool check": RULES,
    "psql": PG_DUMP,
    "python": "its script is looked up, and its flags in the script",
    "python3 -m venv": INSTALLED,
    "rm -f /var/lib/laggard/incidents.sqlite-wal": BACKUP,
    "rm -rf /opt/laggard": INSTALLED,
    "rm -rf /run/laggard /var/lib/laggard": A_CLUSTER,
    "sed -i s|runbook_url:": RUNBOOKS,
    "sqlite3": BACKUP,
    "sed -i": f"{_MANIFESTS}::test_with_tls_another_namespace_is_in_every_name",
    "srun": GPUS,
    "sudo laggard healthcheck": "tests/gate/test_accept.py::test_the_lines_of_the_page_accept_list_and_end",
    "systemctl": INSTALLED,
    "systemd-sysusers": INSTALLED,
    "systemd-tmpfiles": INSTALLED,
    "torchrun": "tests/trainer_hooks/test_ways_to_start.py::test_each_rank_is_recorded",
    "umask 077": BACKUP,
    "userdel": INSTALLED,
    "{ useradd": INSTALLED,
    "useradd": INSTALLED,
    "}": INSTALLED,
}
"""What the docs show and no test types: the words that such a command begins with, and the test that covers it, or what
it needs. The longest beginning counts."""

PLACE = re.compile(r"\b(?:deploy/(?!laggard-)|docs/|scripts/|bench/|tests/)[\w./*{},-]+")


def _lines() -> list[Line]:
    return [line for page in PAGES for line in command_lines(page)]


def _where(line: Line) -> str:
    return f"{line.page.relative_to(REPOSITORY)}:{line.number}"


LINES = [line for line in _lines() if not (line.block == "fenced" and str(line.page.relative_to(REPOSITORY)) in RUN)]


@functools.cache
def _parser() -> argparse.ArgumentParser:
    return whole_parser()


@pytest.mark.parametrize("line", LINES, ids=_where)
def test_a_command_that_no_test_runs_is_one_that_would_run(line: Line) -> None:
    assert line.block == "indented", f"{_where(line)}: a block `sh` is run by a test; name it in RUN: {line.text}"
    for words in simple_commands(line.text):
        own = laggard_words(words)
        if own is not None:
            _expect_taken(own, line)
        if own is None or words[0].rpartition("/")[2] != "laggard":
            _expect_reviewed(words, line)
    _expect_files(line)


@pytest.mark.parametrize(("page", "test"), RUN.items(), ids=list(RUN))
def test_a_page_is_run_by_the_test_that_is_named(page: str, test: str) -> None:
    assert command_lines(REPOSITORY / page), f"{page} has no commands"
    text = _expect_test(test, page)
    assert Path(page).name in text, f"{test} does not name {page}"


@pytest.mark.parametrize("how", sorted({how for how in REVIEWED.values() if "::" in how}))
def test_a_test_that_the_list_names_exists(how: str) -> None:
    _expect_test(how, "the list")


def test_the_list_has_what_the_docs_have() -> None:
    used = {_reviewed(words) for line in LINES for words in simple_commands(line.text)}
    assert not REVIEWED.keys() - used, f"no page has these any more: {sorted(REVIEWED.keys() - used)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_what_a_sentence_calls_laggard_with_exists(page: Path) -> None:
    """`laggard COMMAND --flag` in running text: the command and the flags, whatever stands for their values."""
    outside = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for text in re.findall(r"`((?:[\w ]+ )?laggard [^`]+)`", outside):
        words = laggard_words(text.split())
        if words is None or words[0] == "run":
            continue
        flags = {flag.partition("=")[0] for flag in re.findall(r"(?<![\w-])--?[a-z][\w.-]*", " ".join(words[1:]))}
        unknown = flags - _flags(words[0])
        assert not unknown, f"{page.name}: `{text}`: laggard {words[0]} has no {', '.join(sorted(unknown))}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_what_a_sentence_makes_or_benches_exists(page: Path) -> None:
    """`make TARGET` and `python SCRIPT --flag` in running text."""
    outside = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for number, text in enumerate(re.findall(r"`((?:make|python) [^`]+)`", outside)):
        words = re.sub(r"\s+", " ", text).split()
        if words[0] == "make" or re.match(r"(bench|scripts)/.*\.py$", words[1]):
            _expect_script(words, Line(page, number, text, "inline"))


def _expect_taken(words: list[str], line: Line) -> None:
    try:
        _, rest = _parser().parse_known_args(words)
    except UsageError as error:
        pytest.fail(f"{line.page.name}:{line.number}: laggard does not take it: {error}", pytrace=False)
    if rest:
        pytest.fail(f"{line.page.name}:{line.number}: laggard does not know {rest[0]}: {line.text}", pytrace=False)


def _expect_reviewed(words: list[str], line: Line) -> None:
    if _reviewed(words) is None:
        pytest.fail(
            f"{line.page.name}:{line.number}: no test runs `{' '.join(words)}`: put it into a block `sh` of a page "
            "that a test runs, or into REVIEWED with the test that covers it, or with what it needs",
            pytrace=False,
        )
    _expect_script(words, line)


def _expect_script(words: list[str], line: Line) -> None:
    """What make or python is given: the targets, or the script and its flags."""
    if words[0] == "make":
        for target in re.findall(r"(?:^make| && make) (\w[\w-]*)", " ".join(words)):
            makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{line.page.name}: no target {target}"
    if words[0] == "python":
        script = REPOSITORY / words[1]
        assert script.is_file(), f"{line.page.name}:{line.number}: {words[1]} is not there"
        for flag in (word for word in words[2:] if word.startswith("--")):
            assert f'"{flag}"' in script.read_text(), f"{line.page.name}:{line.number}: {words[1]} has no {flag}"


def _reviewed(words: list[str]) -> str | None:
    text = " ".join(words)
    return max((start for start in REVIEWED if f"{text} ".startswith(f"{start} ")), key=len, default=None)


def _expect_files(line: Line) -> None:
    """What a line names of the repository is there; braces and stars stand for several."""
    for place in PLACE.findall(line.text):
        choices = re.search(r"\{(.*?)\}", place)
        for part in choices[1].split(",") if choices else [""]:
            name = place.replace(choices[0], part) if choices else place
            assert any(REPOSITORY.glob(name.rstrip("/."))), f"{_where(line)}: there is no {name}"


def _expect_test(test: str, who: str) -> str:
    file, _, name = test.partition("::")
    text = (REPOSITORY / file).read_text(encoding="utf-8")
    assert f"def {name}(" in text, f"{who} names {test}, which is not there"
    return text


def _flags(command: str) -> set[str]:
    parser = _parser()
    (commands,) = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    assert command in NAMES
    child = commands.choices[command]
    return {flag for action in child._actions for flag in action.option_strings}
