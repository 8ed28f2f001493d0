# `make run` shows the main job from a fresh clone; `make test` checks everything. Both need Python 3.11+, git and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: run test verify lint types layers pytest traces picture bench clean
.DEFAULT_GOAL := run

run: $(VENV)/ready-to-run
	$(BIN)/emu run --topo fattree --trace llama.json

test: lint types layers pytest

lint: $(VENV)/ready-to-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/ready-to-test
	$(BIN)/mypy --strict -p emulator

layers: $(VENV)/ready-to-test
	$(BIN)/lint-imports --no-cache

pytest: $(VENV)/ready-to-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest

# The longer set of proofs: all group sizes, all strategies, 64 processes (about a quarter of an hour).
verify: $(VENV)/ready-to-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow --timeout 1200

# Records the shipped traces again (torch; the small ones about a minute, the two large ones a quarter of an hour).
traces: $(VENV)/ready-to-test
	$(BIN)/emu record -o traces/llama.json --world 64 workloads/llama.py --model 8b --fsdp 8 --tp 8
	OMP_NUM_THREADS=1 $(BIN)/emu record -o traces/llama-tiny-fsdp4.json --nproc 4 --with-state workloads/llama.py --model tiny --fsdp 4
	$(BIN)/emu record -o traces/mixtral-64.json.zst --world 64 workloads/moe.py --model mixtral-8x7b --ep 8 --fsdp 8 --routing balanced
	$(BIN)/emu record --no-memory -o traces/llama-405b-16384.json.zst --world 16384 workloads/llama.py --model 405b --pp 16 --fsdp 128 --tp 8 --microbatches 16
	$(BIN)/emu record --no-memory -o traces/deepseek-v3-2048.json.zst --world 2048 workloads/moe.py --model deepseek-v3 --pp 16 --ep 64 --fsdp 2 --microbatches 16 --routing balanced

# The timeline in the README and the screenshots of docs/report.md.
picture: $(VENV)/ready-to-run
	mkdir -p build
	$(BIN)/emu run --topo fattree --trace llama.json --json build/llama.json > build/report.txt
	$(BIN)/emu view build/llama.json --svg docs/timeline.svg --width 100
	$(BIN)/python docs/screenshots.py docs

bench: $(VENV)/ready-to-test
	$(BIN)/python benchmarks/main_job.py
	$(BIN)/python benchmarks/solver.py
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/peers.py
	$(BIN)/python benchmarks/view.py
	$(BIN)/python benchmarks/collectives.py
	$(BIN)/python benchmarks/deepep.py

$(VENV)/bin/python:
	@command -v git >/dev/null || { echo "make: git is missing (Debian: apt-get install git)" >&2; exit 1; }
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) is missing (Debian: apt-get install python3 python3-venv)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: Python 3.11 or newer is needed; name one with PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "make: Python's venv module is missing (Debian: apt-get install python3-venv)" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/ready-to-run: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing emu into $(VENV) (once)"
	@$(PIP) -e .
	@touch $@

$(VENV)/ready-to-test: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing emu, torch and the test tools into $(VENV) (once)"
	@$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/ready-to-run

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
