# make demo: slow one rank of a real DeepSpeed job, and name it. make test: everything a change must pass, with `check`.
.PHONY: demo test test-all test-bench durations test-fast test-changed test-torch test-ray test-mcp check types style hooks bench bench-locate bench-ablate bench-diagnose bench-drains bench-engines bench-real golden gpu-check gpu-lease soak docs release wheelhouse install-check format clean

BIN := .venv/bin
# The tests start laggard some hundred times: where its modules are not compiled, each start takes 0.13 s longer.
unexport PYTHONDONTWRITEBYTECODE
TESTS ?= tests
BASE ?= HEAD
# A process for each core, and some MORE where slow tests wait for others; which tests stay together, their marks say
# (tests/support/order.py). WORKERS=0: all in this process.
MORE := 0
WORKERS ?= $(shell expr $$(nproc) + $(MORE))
RUN_TESTS = -m pytest -n $(WORKERS)
PYTEST = $(BIN)/python $(RUN_TESTS)
KEPT = --junitxml=out/junit.xml

demo:
	@scripts/setup --demo
	@$(BIN)/laggard demo $(ARGS)

# What each change must pass: ten minutes on two cores. Of the slow tests, those that it can break, up to a bound.
test: MORE := 1
test: check
	@scripts/setup --system
	@mkdir -p out && $(BIN)/python scripts/changed_tests.py --branch >out/changed.txt
	$(PYTEST) -m "not slow or spine or changed" --changed out/changed.txt $(KEPT) $(TESTS)

# Everything, with the benches' smallest runs: half an hour. What judges a wall clock runs by itself; 5: TESTS has none of it.
test-all: MORE := 1
test-all: check
	@scripts/setup --system
	$(PYTEST) -m "not wall_clock" --hypothesis-profile=explore $(KEPT) $(TESTS)
	$(BIN)/python -m pytest -n 0 -m wall_clock $(TESTS) || [ $$? -eq 5 ]
	@$(MAKE) --no-print-directory test-bench

# Keeps what the last run took: tests/durations.json, by which tests are ordered and chosen. For a quiet machine.
durations:
	@PYTHONPATH=tests $(BIN)/python -m support.durations

test-fast:
	@scripts/setup
	$(PYTEST) -m "not slow and not spine" $(TESTS)

# The inner loop: the fast tests that what differs from BASE can break.
test-changed:
	@scripts/setup
	@tests=$$($(BIN)/python scripts/changed_tests.py $(BASE)) && if [ -n "$$tests" ]; \
		then $(PYTEST) -m "not slow and not spine" $$tests; else echo "no test depends on what changed"; fi

# The hooks' tests with another torch, and another DeepSpeed, in an environment of their own: docs/development/versions.md.
#   make test-torch TORCH=2.6.0 DEEPSPEED=0.17.6
test-torch:
	@scripts/setup-torch "$(TORCH)" "$(DEEPSPEED)"
	.venv-torch-$(TORCH)/bin/python $(RUN_TESTS) $(if $(filter file,$(origin TESTS)),tests/trainer_hooks,$(TESTS))

# The example of Ray Train with the real Ray, in an environment of its own: .venv-ray.
test-ray:
	@scripts/setup
	@scripts/setup-beside ray 'ray[train]==2.60.0'
	.venv-ray/bin/python -m pytest -n 0 tests/trainer_hooks/test_ray.py

# `laggard collector mcp` with the Model Context Protocol's own client, in an environment of its own: .venv-mcp.
test-mcp:
	@scripts/setup
	@scripts/setup-beside mcp 'mcp==2.3.0'
	.venv-mcp/bin/python -m pytest -n 0 tests/assistant/test_mcp.py

check:
	@scripts/setup
	@$(MAKE) --no-print-directory --jobs 2 --output-sync types style

types:
	$(BIN)/mypy

style:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

# Puts `make check` before every commit of this clone.
hooks:
	@scripts/setup
	$(BIN)/pre-commit install

bench:
	@scripts/setup
	@$(BIN)/python bench/all.py $(ARGS)

# The benchmarks' own tests, with a smallest run of each script: it is there and measures what it says.
# ARGS='-m "not slow"': without those.
test-bench:
	@scripts/setup --system
	$(PYTEST) -c bench/pyproject.toml bench/tests $(ARGS)

# How right localisation is, on simulated jobs: docs/development/benchmark.md. ARGS="--quick", "--seed N".
bench-locate:
	@scripts/setup
	@$(BIN)/python bench/locate_quality.py $(ARGS)

# Which rules and thresholds of localisation decide anything: docs/development/benchmark.md. Goes on where it was stopped. ARGS="--quick",
# "--rule NAME", "--family NAME", "--list", "--write".
bench-ablate:
	@scripts/setup
	@$(BIN)/python bench/ablate.py $(ARGS)

# How right `laggard diagnose` is on what people post: tests/data/field. ARGS="--list": each case that is not right.
bench-diagnose:
	@scripts/setup
	@$(BIN)/python bench/diagnose_quality.py $(ARGS)

# How many healthy nodes laggard takes out of service, and how many faults it catches: docs/development/benchmark.md. ARGS="--quick",
# "--seed N", "--list": each state of which it is wrong, "--sources".
bench-drains:
	@scripts/setup
	@$(BIN)/python bench/false_drains.py $(ARGS)

# What laggard says of every recorded and simulated job and machine, compared with what is frozen in tests/data/golden; some
# minutes. ARGS=--write: freezes it anew; "--only fluid/nic": a family, or a case.
golden:
	@scripts/setup
	@$(BIN)/python tests/golden $(ARGS)

# Real trainings of many engines, each in thirteen cases, judged: docs/development/engines.md. The libraries are in .venv-engines. Goes
# on where it was stopped. ARGS="--engine ddp --case sigkill", "--list", "--table".
bench-engines:
	@scripts/setup
	@scripts/setup-engines
	@.venv-engines/bin/python bench/every_engine.py $(ARGS)

# Real trainings on gloo that something befalls from outside, as root, some forty minutes on an idle machine:
# docs/development/benchmark.md. Goes on where it was stopped. ARGS="--job ddp --fault quota", "--again", "--write".
bench-real:
	@scripts/setup
	@$(BIN)/python bench/real_quality.py $(ARGS)

# What takes longer than a change may wait, as root, some forty minutes: the release, tried (install-check), then twenty
# minutes of faults: no crash, no leak, right verdicts, every incident kept (docs/development/soak.md). ARGS="--minutes 3": the faults.
soak:
	@scripts/setup
	@[ -n "$(ARGS)" ] || { $(MAKE) --no-print-directory release && $(MAKE) --no-print-directory install-check; }
	@$(BIN)/python bench/soak.py $(ARGS)

# On a machine with GPUs: several ranks of NCCL on one of them, what the hooks cost, readings against nvidia-smi, probes.
# A second run into the same folder goes on where the first ended. Needs no .venv: any Python with torch will do for the larger part (PYTHON=...); what cannot
# run says why. ARGS="--part NAME", "--help"; tests/upstream.md: on a borrowed machine.
gpu-check:
	@$(or $(PYTHON),$(wildcard $(BIN)/python),python3) scripts/gpu-check $(ARGS)

# The same within the 900 s of a machine that is lent: its plan, then what it has time for (tests/upstream.md). LEASE=1 or 2:
# one of its two calls; LEASE=plan: the plan alone. ARGS=--rehearse: what can run on the CPU.
gpu-lease:
	@$(or $(PYTHON),$(wildcard $(BIN)/python),python3) scripts/gpu-check --lease $(or $(LEASE),12) $(ARGS)

# docs/install.md, tried in fresh Debians whose first process is systemd: docs/development/release.md. As root; ARGS="systemd",
# "image": a part.
install-check:
	@scripts/setup --install-check
	@$(BIN)/python scripts/install_check.py $(ARGS)

# The docs as a site, in out/docs; strict: a link that leads nowhere ends it.
docs:
	@scripts/setup
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# sdist, wheel, manual page, completion and bill of materials, in dist/: docs/development/release.md. The container image is
# built where there is podman: deploy/container/Containerfile.
release:
	@scripts/setup
	@[ -e .venv-release/.installed ] || { $(BIN)/python -m venv .venv-release && \
		.venv-release/bin/pip install -q --upgrade 'pip>=25.1' && \
		.venv-release/bin/pip install -q --editable '.[collector,grafana,tune]' --group release && \
		touch .venv-release/.installed; }
	@rm -rf dist
	@.venv-release/bin/python scripts/release.py $(ARGS)

# laggard and all that it needs as wheels, with their hashes, for machines without a network, in dist/wheelhouse:
# docs/operate.md. ARGS="--python python3.12": for that Python; "--extra terminal --extra collector".
wheelhouse:
	@scripts/setup
	@rm -rf dist/wheelhouse
	@$(BIN)/python scripts/wheelhouse.py $(ARGS)

format:
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .venv-release .venv-torch-* .venv-ray .venv-mcp .venv-engines out build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
