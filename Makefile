# `make` lists the targets. All of them use one environment, .venv, built from constraints.txt.

PYTHON ?= python3
# A package index to take PyTorch from, such as https://download.pytorch.org/whl/cpu.
TORCH_INDEX ?=
WORKERS ?= 2

TORCH := torch==2.13.0
EXTRAS := cli,torch,jax,dev,site
BIN := .venv/bin
READY := .venv/.ready
# Byte code is compiled when a module is first used, not for all of PyTorch, SymPy and JAX.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

# What has no lowest version is as in constraints.txt.
LOWEST := --quiet --disable-pip-version-check --no-compile -c constraints-lowest.txt -c .venv-lowest/others.txt
CORE := $(foreach room,arrays links losses maps metrics,tests/$(room))

# For `make test-upstream`: other versions of NumPy, PyTorch or JAX, and the options of pip that find them.
UPSTREAM ?= torch
UPSTREAM_INDEX ?= $(if $(TORCH_INDEX),--extra-index-url "$(TORCH_INDEX)")
OF_UPSTREAM := .venv-upstream/bin/python -m pip install --quiet --disable-pip-version-check --no-compile

# XLA compiles thousands of programs for tests, and the processes that tests start import PyTorch a hundred times. What
# was compiled, programs and byte code, is kept in build for the next process, and the next run.
KEPT := JAX_COMPILATION_CACHE_DIR=$(CURDIR)/build/xla JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 \
	JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1 PYTHONPYCACHEPREFIX=$(CURDIR)/build/bytecode PYTHONDONTWRITEBYTECODE=
# One thread per test process, because there are as many processes as cores.
PYTEST := $(KEPT) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# What `make test` and `make test-slow` run between them.
ORDINARY := not full and not extras and not dist and not browser and not gpu

# Levels of x86-64 to test: of those below this processor's own, and its own; none but that on other processors. And
# what is tested at each, all of it or a sample.
BELOW ?= x86-64-v2 x86-64-v3
OLDER = $(filter $(BELOW),$(shell $(BIN)/python -c "from kofn.kernels.cpu.runtime import library; \
	print(*(library.served() or [])[:-1])"))
LEVELS ?= $(OLDER) own
OF_LEVELS ?= tests/kernels tests/maps/test_maps_accuracy.py tests/maps/test_maps_laws.py tests/formulas/test_formulas_gradients.py \
	tests/formulas/test_formulas_far_scores.py tests/formulas/test_formulas_of_users.py tests/maps/test_maps_knapsack_gradients.py tests/formulas/test_formulas_total.py \
	tests/docs/test_docs_gradients.py
SAMPLE ?= tests/kernels/test_kernels.py tests/kernels/test_kernels_temperature.py tests/formulas/test_formulas_total.py tests/maps/test_maps_accuracy.py \
	tests/formulas/test_formulas_gradients.py tests/kernels/test_kernels_few.py tests/kernels/test_kernels_sample.py

# For `make gpu`: where it writes, and what it needs beside PyTorch, Triton and NumPy. All of it is Python alone.
DEVICE ?= cuda
# A rehearsal must not write over what a GPU has said.
OUT ?= $(if $(filter cpu,$(DEVICE)),build/gpu-rehearsal,benchmarks/results)
GPU_WHEELS := pytest iniconfig pluggy packaging pygments pytest-xdist execnet typer rich click shellingham \
	markdown-it-py mdurl typing-extensions annotated-doc entmax liger-kernel

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-both slow test-all test-full test-reference test-levels test-older test-extras faults test-explorer test-dist test-arm test-pythons test-lowest test-upstream signatures dist wheels hub lint format bench gpu gpu-wheels studies docs explorer-figure site library library-own kernels clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{printf "%-24s%s\n", $$1, $$2}'

demo: $(READY)  ## select pixels of digits and columns that matter in pairs, by many methods
	$(BIN)/kofn select --force

test: $(READY)  ## run the test suite, but for the cases that take a second or more
	$(PYTEST)

test-slow: $(READY)  ## run those cases: what XLA, Inductor and Triton compile, and what starts processes
	$(PYTEST) -m slow $$(cut -d: -f1 tests/slow.txt | sort -u)

test-both: $(READY)  ## run what these two have in one go, as .ci/run does: modules are imported once, and no core waits between
	$(PYTEST) -m "$(ORDINARY)"

slow: $(READY)  ## measure what each test takes, and write tests/slow.txt anew
	PYTHONPATH=tests $(PYTEST) -m "$(ORDINARY)" -p slow

test-all: test-full test-reference  ## run all tests (marker `full` too), then most of them again without kernels

test-full: $(READY)  ## run all tests, programs compiled as users compile them; hours the first time
	XLA_FLAGS= $(PYTEST) -m "not extras and not dist and not browser"

test-reference: $(READY)  ## run all tests but those of JAX without kernels
	KOFN_KERNELS=reference $(PYTEST) -m "not extras and not dist and not browser" -k "not jax" \
		--ignore=tests/kernels

test-levels: $(READY)  ## run the tests of kernels, accuracy and gradients with code for older processors, too
	$(BIN)/python -m wheels.library --own --levels $(patsubst x86-64-%,%,$(filter-out own,$(LEVELS)))
	@set -e; for level in $(LEVELS); do \
		echo "level: $$level"; \
		KOFN_CPU=$${level#own} $(PYTEST) $(OF_LEVELS); \
	done

test-older: $(READY)  ## run some of these with code for older processors only, as .ci/run does at its end
	$(if $(OLDER),$(MAKE) test-levels LEVELS="$(OLDER)" OF_LEVELS="$(SAMPLE) -k 'not jax'", \
		@echo "Of $(BELOW), none is below this processor's own, which the other tests have.")

test-extras: $(READY)  ## install what some parts need (transformers, Flax, SAELens, PyTorch Geometric, jaxopt, POT, cvxpy) and test these
	$(PIP) --no-build-isolation --editable ".[transformers,flax,sae,graph,bench,peers]"
	$(PIP) kernels
	$(PYTEST) -m extras
	$(PYTEST) src/kofn/integrations

signatures: $(READY)  ## write the names of links and of files that are loaded late, and the public signatures, after a change that is meant
	$(BIN)/python tests/names_written.py
	PYTHONPATH=tests $(BIN)/python tests/signatures.py

faults: $(READY)  ## plant known faults in a copy of the sources, and see whether tests catch each; HOW="--only NAME"
	$(BIN)/python tests/faults $(HOW)

test-explorer: $(READY)  ## drive the page of kofn explore, look at formulas, and search the site, in Chromium, which has to be there
	$(PIP) playwright
	$(BIN)/python -m pytest -m browser tests/commands/test_commands_explore_browser.py tests/commands/test_commands_explore_matrix_browser.py tests/docs/test_docs_site.py tests/docs/test_docs_site_search.py

dist: $(READY)  ## build the source archive and the wheel in dist, and check their contents
	rm -rf dist
	$(BIN)/python -m hatchling build
	$(BIN)/python tests/release/check_files.py dist

wheels: $(READY)  ## build the wheels of all platforms in dist by zig, and check their contents; minutes
	$(PIP) ziglang
	rm -rf dist
	$(BIN)/python -m wheels
	$(BIN)/python tests/release/check_files.py dist

test-dist: $(READY)  ## install the wheel in fresh environments and try it there; minutes, and downloads
	$(BIN)/python -m pytest -m dist tests/package/test_package_release.py

hub: $(READY)  ## write the kernel for Hugging Face's Kernel Hub, made of kofn's files, to build/hub
	$(BIN)/python -m wheels.hub build/hub

test-arm: $(READY)  ## try the wheel for aarch64 under QEMU, as root; ten minutes, and downloads
	$(PIP) ziglang
	$(BIN)/python -m wheels linux-aarch64
	wheels/arm.sh "$$(ls -t dist/kofn-*-manylinux*_aarch64.whl | head -n 1)"

test-pythons: dist  ## try the wheel for this machine on each Python, free-threaded too; twenty minutes, and downloads
	wheels/pythons.sh dist/kofn-*.whl

test-lowest:  ## run the core of the tests on the lowest versions that pyproject.toml allows
	$(PYTHON) -m venv --clear .venv-lowest
	awk -F== 'NR == FNR {low[$$1]; next} !($$1 in low)' constraints-lowest.txt constraints.txt > .venv-lowest/others.txt
	.venv-lowest/bin/python -m pip install $(LOWEST) $(if $(TORCH_INDEX),--no-deps --index-url "$(TORCH_INDEX)") torch
	.venv-lowest/bin/python -m pip install $(LOWEST) entmax hatchling hypothesis mpmath pytest
	.venv-lowest/bin/python -m pip install $(LOWEST) --no-build-isolation --editable ".[cli,torch,jax]"
	XLA_FLAGS= OMP_NUM_THREADS=1 .venv-lowest/bin/python -m pytest $(CORE) -k "not compil and not trace and not autocast"

test-upstream:  ## run the core of the tests with other versions, as of nightly builds; UPSTREAM="torch==2.15.*" UPSTREAM_INDEX=
	$(PYTHON) -m venv --clear .venv-upstream
	$(OF_UPSTREAM) -c constraints.txt $(if $(TORCH_INDEX),--no-deps --index-url "$(TORCH_INDEX)") torch
	$(OF_UPSTREAM) -c constraints.txt entmax hatchling hypothesis mpmath pytest
	$(OF_UPSTREAM) -c constraints.txt --no-build-isolation --editable ".[cli,torch,jax]"
	$(OF_UPSTREAM) --upgrade $(UPSTREAM_INDEX) $(UPSTREAM)
	OMP_NUM_THREADS=1 .venv-upstream/bin/python -m pytest $(CORE) tests/nn tests/adapters/test_adapters.py

lint: $(READY)  ## check formatting, style, spelling and types; changes nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell *.md *.toml Makefile .github benchmarks docs examples src studies tests wheels
	$(BIN)/mypy

format: $(READY)  ## format the code and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)  ## time the maps against softmax and others on an idle machine, twice: with its own level, and with AVX2
	$(PIP) --no-build-isolation --editable ".[bench]"
	$(BIN)/kofn bench --out benchmarks/results --force
	KOFN_CPU=x86-64-v3 ATEN_CPU_CAPABILITY=avx2 $(BIN)/kofn bench --out benchmarks/results/avx2 --force
	$(BIN)/kofn bench --case calls --threads 1 --out benchmarks/results/calls --force
	$(BIN)/python -m benchmarks.published --write

gpu:  ## test, then time on a GPU, in six minutes; PYTHON= with PyTorch, Triton and NumPy, OUT=, DEVICE=cpu rehearses
	$(PYTHON) -m benchmarks.gpu --out "$(OUT)" --device $(DEVICE) $(HOW)

gpu-wheels:  ## put the other packages that `make gpu` needs into build/gpu-wheels, for Python 3.12 on Linux
	rm -rf build/gpu-wheels build/gpu-site
	$(PYTHON) -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest build/gpu-wheels \
		--python-version 3.12 --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 \
		$(GPU_WHEELS)

studies: $(READY)  ## train the models of the studies in docs/nn_*.md and docs/estimators.md; an hour or two
	$(BIN)/python -m studies.router --force
	$(BIN)/python -m studies.attention --steps 700 --force
	$(BIN)/python -m studies.sae --force
	$(BIN)/python -m studies.prune --force
	$(BIN)/python -m studies.choice --force
	$(BIN)/python -m studies.replay --force
	$(BIN)/python -m studies.losses --force
	$(BIN)/python -m studies.vae --seeds 3 --force
	cp kofn-vae/curves.png docs/images/vae_curves.png
	cp kofn-vae/digits.png docs/images/vae_digits.png

docs: $(READY)  ## draw the figures of the documentation, and write its tables of times, links and properties; minutes
	$(BIN)/python -m benchmarks.published --write
	$(BIN)/python docs/make_idea_figure.py
	$(BIN)/python docs/make_links_figure.py
	$(BIN)/python docs/table_of_links.py --write
	$(BIN)/python docs/table_of_properties.py --write
	$(BIN)/python docs/make_subsets_figure.py
	$(BIN)/python docs/make_maps_figure.py
	$(BIN)/python docs/make_nn_figures.py
	$(BIN)/python docs/make_rooms_figure.py
	$(BIN)/python docs/make_study_figures.py
	$(BIN)/python docs/make_curves_figure.py
	$(BIN)/kofn select --force
	cp kofn-select/selection.png docs/images/feature_selection.png

explorer-figure: $(READY)  ## take the picture of kofn explore by Chromium, which has to be there
	$(PIP) playwright
	$(BIN)/python docs/make_explorer_figure.py

site: $(READY)  ## build the documentation as a site, in site/, and check its links
	$(BIN)/python docs/site/build.py site
	$(BIN)/python docs/site/check.py site

library: $(READY)  ## compile the CPU kernels for every level of this machine's processor
	$(BIN)/python -m wheels.library

library-own: $(READY)  ## compile the CPU kernels for this machine's processor alone
	$(BIN)/python -m wheels.library --own

kernels: $(READY)  ## translate and compile those CPU kernels that have changed
	$(BIN)/python -c "from wheels.library import every; every.ship()"
	$(MAKE) library-own

clean:  ## remove .venv, caches and all generated files
	rm -rf .venv .venv-lowest .venv-upstream build dist $(addprefix src/kofn/kernels/cpu/kofn.,so dylib dll) site kofn-select kofn-compare kofn-vae kofn-router kofn-attention kofn-sae kofn-prune .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find src studies tests docs -name __pycache__ -type d -prune -exec rm -rf {} +

# PyTorch comes on its own, because it alone may come from another index. That index need not hold
# the pinned versions of its dependencies, so they are left to the last step. The library of kernels
# needs few packages: it is compiled, for a minute or two, while pip unpacks the others on one core.
# It is linked by a C compiler: by zig where there is no other.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kofn needs Python 3.11 or newer; set PYTHON=/path/to/python")'
	@echo "building .venv (minutes, once)"
	@$(PYTHON) -m venv .venv
	$(PIP) hatchling jaxlib numba
	@command -v $${CC:-cc} >/dev/null || $(PIP) ziglang
	@PYTHONPATH=src $(BIN)/python -m wheels.library --own & library=$$!; \
	$(PIP) $(if $(TORCH_INDEX),--no-deps --index-url "$(TORCH_INDEX)") $(TORCH) && \
	$(PIP) --no-build-isolation --editable ".[$(EXTRAS)]" \
	|| { kill $$library; exit 1; }; \
	wait $$library
	@touch $@
