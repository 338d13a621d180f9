# The two commands of the README do all the set-up that they need: `make test` and `make demo`.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
export OMP_NUM_THREADS ?= 2
# What `make test` tests apart from the rest: see the rules of these folders.
APART = $(abspath $(VENV))/timm-only:$(abspath $(VENV))/fastai-only:$(abspath $(VENV))/litdata-only:$(abspath $(VENV))/ultralytics-only
# Two test processes of one thread each; a file's tests stay together, and so do their fixtures.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile

# The core, and the tests that reach it: not those of the site, the release, the stored results and the workflows;
# of the trainers, those whose loaders the core itself treats specially (src/infobatch/loaders, trainers.py).
CORE = $(addprefix tests/,plan distributed memory policies step epoch keyed forecast scoring coresets experimental accelerators) \
	$(filter-out $(patsubst %,tests/test_%.py,docstrings evidence examples imports release site workflows),$(wildcard tests/test_*.py)) \
	$(patsubst %,tests/integrations/test_%.py,accelerate stateful_dataloader lightning_check lightning_interface skorch ignite)

.PHONY: test test-slow test-matrix coverage check demo bench results docs serve-docs dist clean

test: check $(VENV)/timm-only $(VENV)/fastai-only $(VENV)/litdata-only $(VENV)/ultralytics-only  ## lint, types and the fast tests
	$(PYTEST)
	PYTHONPATH=$(APART) $(PYTEST) tests/integrations/test_timm.py tests/integrations/test_fastai.py tests/integrations/test_litdata.py tests/integrations/test_ultralytics.py tests/integrations/test_ultralytics_ranks.py
	PYTHONPATH=$(APART) $(PYTEST) -k bccd tests/lab/recipes

test-slow: $(VENV)/installed $(VENV)/timm-only $(VENV)/fastai-only $(VENV)/litdata-only $(VENV)/ultralytics-only $(VENV)/chromium $(VENV)/ray  ## everything, the long tests too
	$(PYTEST) -m "slow or not slow"
	PYTHONPATH=$(APART) $(PYTEST) -m "slow or not slow" tests/integrations/test_timm.py tests/integrations/test_timm_script.py tests/integrations/test_fastai.py tests/integrations/test_litdata.py tests/integrations/test_ultralytics.py tests/integrations/test_ultralytics_ranks.py
	PYTHONPATH=$(APART) $(PYTEST) -m "slow or not slow" -k bccd tests/lab/recipes

coverage: $(VENV)/installed  ## branch coverage of the core: what is not reached, and the total
	$(PYTEST) --cov --cov-report=term-missing:skip-covered --cov-report=json:test-output/coverage.json $(CORE)

check: $(VENV)/installed  ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

demo: $(VENV)/installed  ## a comparison on real images: a decision, a table and a report
	$(BIN)/infobatch demo --out demo-output

bench: $(VENV)/installed  ## what pruning costs, as ratios to torch's RandomSampler, and of the rules to the mean rule
	$(BIN)/python benchmarks/overhead.py --check
	$(BIN)/python benchmarks/rules.py --check
	$(BIN)/python benchmarks/keyed.py --check

results: $(VENV)/installed  ## the pages of results and their figures, from the stored JSON
	$(BIN)/python benchmarks/evidence/pages.py
	$(BIN)/python benchmarks/explain.py docs/images
	$(BIN)/python benchmarks/evidence/cards.py

docs: $(VENV)/installed  ## the site, in site/: fails on any warning, a dead link or anchor included
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

dist: $(VENV)/installed  ## the wheel and the source archive, checked as an index would
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

test-matrix: $(VENV)/installed  ## the core's tests with the oldest and newest torch and Pythons; before a release
	$(BIN)/python benchmarks/matrix.py

serve-docs: docs  ## http://localhost:8000
	$(BIN)/python -m http.server --directory site

# torch first and by its exact version: a bare `torch` may bring gigabytes of CUDA packages.
$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $@

# The report is tested in a real browser: one that is there (CHROMIUM names it, too), else
# Playwright's, else the distribution's.
$(VENV)/chromium: $(VENV)/installed
	test -x "$$CHROMIUM" || command -v chromium || command -v google-chrome \
		|| $(BIN)/python -m playwright install chromium \
		|| apt-get install --yes --no-install-recommends chromium
	touch $@

# timm needs torchvision, and other packages behave differently where torchvision is: a folder of its
# own. Without dependencies, all of which are there: torchvision would bring a torch for CUDA.
$(VENV)/timm-only: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps --upgrade --target $@ timm torchvision
	touch $@

# fastai asks for torchvision as well, and for spaCy; training needs neither of them.
$(VENV)/fastai-only: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps --upgrade --target $@ fastai fastcore fastdownload fastprogress fasttransform plum-dispatch beartype
	touch $@

# litdata asks for torchvision as well; streaming from a folder needs neither that nor its clients of other stores.
$(VENV)/litdata-only: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps --upgrade --target $@ litdata boto3 botocore jmespath s3transfer
	touch $@

# Ultralytics asks for torchvision as well (timm's folder has it), and for opencv with its windows.
$(VENV)/ultralytics-only: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps --upgrade --target $@ ultralytics ultralytics-thop opencv-python-headless polars polars-runtime-32
	touch $@

$(VENV)/ray: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[ray]"
	touch $@

clean:
	rm -rf $(VENV) dist site demo-output demo-output-smoke test-output .coverage .mypy_cache .pytest_cache .ruff_cache .hypothesis
