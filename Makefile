PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LIGHT = $$($(BIN)/python -c "import onnx, pathlib; print(pathlib.Path(onnx.__file__).parent / 'backend/test/data/light')")
PACKS := cpuconv/packs/sources

.PHONY: warmup pack test walk test-cpus test-arm fuzz bench wheel docs clean

warmup: $(VENV)/.has-onnx  ## tune the convolutions of a real ResNet-50, and print the table
	@$(BIN)/autotune warmup "$(LIGHT)/light_resnet50.onnx"

pack: $(PACKS)  ## a kernel pack of this CPU in the checkout, so that later starts compile less: some minutes

$(PACKS): | $(VENV)/.has-onnx
	$(BIN)/python -m bench.packs --classes native --types f32 --closed f32 --shapes 0 --drawn 16 --networks "$(LIGHT)" --kept build/kernels

SAMPLE ?= 20
test: $(VENV)/.has-dev  ## everything that must hold before a change is merged
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/python -m pytest -n auto --dist worksteal --sample $(SAMPLE)

walk: $(VENV)/.has-dev $(VENV)/.has-docs  ## a stranger's first minutes, from a fresh clone: commands, screens, pages and times
	CPUCONV_WALK=1 $(BIN)/python -m pytest tests/project/test_first_minutes.py tests/project/test_site.py tests/project/test_snippets.py

test-cpus: $(VENV)/.has-dev  ## the tests with code for other CPUs, those that this one can execute
	$(BIN)/python tests/cpus.py

test-arm: $(VENV)/.has-dev  ## the tests on an emulated ARM; says so, with code 77, where that cannot be had
	$(BIN)/python tests/cpus.py --arm

FUZZ_SECONDS ?= 600
FUZZ_FIRST ?= 0
fuzz: $(VENV)/.has-dev  ## random models, and the readers of models, wisdom and problems, guided by coverage; code 77 where atheris cannot be had
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check 'atheris>=3.0'
	$(BIN)/python tests/random_models.py --seconds $(FUZZ_SECONDS) --count 1000000 --first $(FUZZ_FIRST)
	$(BIN)/python tests/fuzz.py --seconds $(FUZZ_SECONDS)

bench: $(VENV)/.has-bench  ## tune the benchmark's lines and compare with the other engines
	$(BIN)/autotune warmup bench/shapes/canonical.txt --layouts auto,auto
	$(BIN)/python -m bench.compare

CLASSES ?=
wheel: $(VENV)/.has-models  ## a wheel in dist/, with machine code for all classes of CPUs; CLASSES=haswell,znver4 for some
	$(BIN)/python -m bench.networks build/networks
	$(BIN)/python -m bench.packs --classes "$(CLASSES)" --networks build/networks --kept build/kernels
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

docs: $(VENV)/.has-docs  ## the pages of docs/ with the reference of the public calls, as a site in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) build dist site cpuconv/packs .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp per extra: installed again when the dependencies change.
$(VENV)/.has-%: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$*]'
	@touch $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
