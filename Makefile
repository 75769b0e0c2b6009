# make demo: slow one rank of a real DeepSpeed job, and name it. make test: everything a change must pass, with `check`.
.PHONY: demo test test-fast check bench demo-table gpu-check format clean

BIN := .venv/bin
TESTS ?= tests

demo:
	@scripts/setup
	@$(BIN)/laggard demo $(ARGS)

test:
	@scripts/setup --system
	$(BIN)/python -m pytest $(TESTS)

test-fast:
	@scripts/setup
	$(BIN)/python -m pytest -m "not slow" $(TESTS)

check:
	@scripts/setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

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
