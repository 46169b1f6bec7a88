# All paths are relative, so that the checkout may lie under a path with spaces.
# `make PYTHON=/path/to/python3.12 test` chooses the interpreter of a new .venv.

PYTHON ?=
# `make fuzz TORCH=2.15.0` runs ranks on that torch, from an environment of its own.
TORCH ?=
RUN := .venv/bin/python -m

.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help fuzz test lint types sensitivity wheel clean distclean

help:
	@echo "make fuzz         set up .venv and fuzz FSDP with 150 cases"
	@echo "                  with TORCH=2.15.0 that torch's, which goes to .venv-2.15.0"
	@echo "make test         set up .venv, lint, check types and run all tests"
	@echo "make lint         ruff only"
	@echo "make types        mypy only"
	@echo "make sensitivity  inject every ninth of the benchmark's faults: what is found, and how soon"
	@echo "make wheel        dist/*.whl, built from the source distribution"
	@echo "make clean        remove caches and what was built"
	@echo "make distclean    the same, and .venv with those of other torches"

fuzz: .venv/.installed $(if $(TORCH),.venv-$(TORCH)/.installed)
	@$(RUN) fsdpfuzz run --profile dev$(if $(TORCH), --python .venv-$(TORCH)/bin/python)

# pytest comes last, so that its closing line is the last one printed. What a busy machine would
# disturb runs by itself. Tests start hundreds of commands, which would compile all sources anew
# where the environment forbids to keep them.
test: export PYTHONDONTWRITEBYTECODE =
test: lint types
	@$(RUN) pytest -rN -n 2 --dist loadfile -m "not alone and not models"
	@$(RUN) pytest -rN -m alone

lint: .venv/.installed
	@$(RUN) ruff check .
	@$(RUN) ruff format --check .

types: .venv/.installed
	@$(RUN) mypy

# Each time from the start, for a look before and after a change of strategies or invariants; all
# faults take hours on few cores. About ten minutes.
sensitivity: .venv/.installed
	@$(RUN) benchmarks.sensitivity --every 9 --jobs 2 --without-seeds --seconds 60 --shrink-seconds 10 \
	  --max-seconds 600 --json .fsdpfuzz/sensitivity-$$(date +%Y%m%d-%H%M%S).jsonl

wheel: .venv/.installed
	@$(RUN) build --no-isolation

clean:
	rm -rf build dist fsdpfuzz.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -not -path "./.venv*/*" -prune -exec rm -rf {} +

distclean: clean
	rm -rf .venv .venv-*

# A name that the shell finds may still not run (version managers put stubs there) or lack
# venv (Debian ships it apart), so each candidate is tried.
.venv/.created:
	@chosen=; \
	for python in $(if $(PYTHON),"$(PYTHON)",python3 python3.11 python3.12 python3.13 python3.14); do \
	  if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
	  then chosen=$$python; break; fi; \
	done; \
	if [ -z "$$chosen" ]; then \
	  echo "fsdpfuzz needs Python 3.11 or newer with the venv module: $(if $(PYTHON),$(PYTHON) is not that,none of python3 python3.11 python3.12 python3.13 python3.14 is)." >&2; \
	  echo "Install one (Debian and Ubuntu: apt install python3 python3-venv), or name it: make PYTHON=/path/to/python3.12 ..." >&2; \
	  exit 1; \
	fi; \
	echo "Setting up .venv with $$("$$chosen" --version)"; \
	"$$chosen" -m venv .venv
	@touch $@

.venv/.installed: .venv/.created constraints.txt pyproject.toml
	@echo "Installing against constraints.txt; torch is large, so the first time takes minutes"
	@$(RUN) pip install --quiet --disable-pip-version-check -c constraints.txt pip setuptools
	@$(RUN) pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e ".[dev]"
	@touch $@

# Ranks need torch and numpy only. Made by .venv's Python, whose msgspec then fits.
.venv-%/.installed: | .venv/.installed
	@echo "Installing torch $* into .venv-$*; it is large, so the first time takes minutes"
	@$(RUN) venv --clear ".venv-$*"
	@".venv-$*/bin/python" -m pip install --quiet --disable-pip-version-check "torch==$*" numpy
	@touch $@
