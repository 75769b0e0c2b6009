# make demo: slow one rank of a real DeepSpeed job, and name it. make test: everything a change must pass, with `check`.
.PHONY: demo test test-fast test-changed check hooks bench demo-table gpu-check format clean

BIN := .venv/bin
# The tests start laggard some hundred times: where its modules are not compiled, each start takes 0.13 s longer.
unexport PYTHONDONTWRITEBYTECODE
TESTS ?= tests
BASE ?= HEAD
# One process more than there are cores, since many tests wait for others; which tests stay together, tests/conftest.py
# says. WORKERS=0: all in this process.
WORKERS ?= $(shell expr $$(nproc) + 1)
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadscope --no-loadscope-reorder

demo:
	@scripts/setup
	@$(BIN)/laggard demo $(ARGS)

test:
	@scripts/setup --system
	$(PYTEST) $(TESTS)

test-fast:
	@scripts/setup
	$(PYTEST) -m "not slow" $(TESTS)

# The inner loop: the fast tests that what differs from BASE can break.
test-changed:
	@scripts/setup
	@tests=$$($(BIN)/python scripts/changed_tests.py $(BASE)) && if [ -n "$$tests" ]; \
		then $(PYTEST) -m "not slow" $$tests; else echo "no test depends on what changed"; fi

check:
	@scripts/setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Puts `make check` before every commit of this clone.
hooks:
	@scripts/setup
	$(BIN)/pre-commit install

bench:
	@scripts/setup
	@$(BIN)/python bench/all.py $(ARGS)

# Thirty demos, a quarter of an hour: the table in docs/demo-table.md.
demo-table:
	@scripts/setup
	@$(BIN)/python bench/demo_table.py $(ARGS)

# On a machine with NVIDIA GPUs: what laggard says of them, how long it takes, and whether nvidia-smi agrees. Needs no
# .venv: any Python with msgspec, nvidia-ml-py and PyYAML.
gpu-check:
	@$(or $(PYTHON),$(wildcard $(BIN)/python),python3) scripts/gpu-check $(ARGS)

format:
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv out build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
