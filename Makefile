# `make` lists what there is to do. All of it happens in .venv, which is made first if need be.
#
#   DEVICE=auto      run, bench, gpu: where, auto (the best there is), cpu, cuda, cuda:1 or mps
#   LESSON="01 03"   run, outputs, nbval, colab, student: only these
#   PARAMS="..."     run: parameters, for example PARAMS="batch_size=32 dataset=random"
#   LAX=1            nbval: compare only cells tagged nbval-check-output (GPU)
#   TORCH=2.15.0     run, test, test-all, nbval: with that torch, installed in build/torch-2.15.0/
#   TIMINGS=1        outputs: renew those that are not compared, too
#   REPO=owner/name  colab, html: the repository on GitHub that links lead to
#   HIDDEN=dir       student: the folder with hidden tests, NN_name.py
#   PYTHON=python3   the interpreter, 3.11 or newer, that makes the environment
PYTHON ?= python3
DEVICE ?= auto

# The lines above are what `make help` shows, and which targets read a variable; others refuse it.
# TORCH counts in the environment, too: saved outputs are those of the pinned one.
given := $(foreach v,$(.VARIABLES),$(if $(filter command,$(origin $v)),$v)) $(if $(TORCH),TORCH)
readers = $(shell sed -n 's/^#   $1=[^:]*  \([^:]*\):.*/\1/p' Makefile | tr -d ,)
$(foreach v,$(filter-out PYTHON OMP_% PIP_%,$(given)),\
	$(foreach g,$(filter-out help clean $(call readers,$v),$(MAKECMDGOALS)),\
		$(error make $g does not read $v)))
$(foreach v,LAX TIMINGS,$(if $(filter-out 1,$($v)),$(error $v is 1 or not given)))

# Another torch has an environment of its own.
pinned := $(shell sed -n 's/^torch==\([0-9.]*\).*/\1/p' requirements.txt)
environment := $(if $(TORCH),build/torch-$(TORCH),.venv)
python := $(environment)/bin/python
# Files that say which lists it was made from. What only tests or pages need is installed by the
# first target that needs it.
space := $() $()
made := $(environment)/made-by-$(subst $(space),-,$(subst :,-,$(subst /,-,$(PYTHON))))
tested := $(environment)/with-tests
published := $(environment)/with-pages
tests := tests/requirements.txt
pages := helpers/tooling/pages/requirements.txt
other := $(filter-out $(pinned),$(TORCH))
pytest := $(python) -m pytest $(if $(LAX)$(other),--nbval-lax) $(if $(other),-W default)

# Variables of Python's own would skip asserts, find other modules, or print more.
unexport $(filter-out PYTHON,$(filter PYTHON%,$(.VARIABLES)))

.NOTPARALLEL:  # two lists would be installed at once
.PHONY: help run bench gpu test test-all nbval outputs colab student html lab lint types lock clean
help:  ## list this
	@echo "make TARGET [VARIABLE=value ...]"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-8s %s\n", $$1, $$2 }' Makefile
	@sed -n 's/^#   /  /p' Makefile
run: $(made)  ## execute lessons on DEVICE into build/<device>/, with a table
	@exec $(python) -m helpers.tooling.run $(LESSON) --device "$(DEVICE)" --params $(PARAMS)
# A peer that is missing, since it could not be installed, is not measured.
bench: $(made)  ## measure the ways of lessons 7 and 7b on DEVICE into build/<device>/bench.json
	-@$(python) -c "import backpack" 2> /dev/null || $(python) -m pip install -q --no-deps \
		-r helpers/study/peers.txt
	-@test -e .venv-jax || "$(PYTHON)" -m venv .venv-jax
	-@.venv-jax/bin/python -c "import jax" 2> /dev/null || .venv-jax/bin/python -m pip install -q \
		-r helpers/study/jax.txt
	@exec $(python) -m helpers.tooling.bench --device "$(DEVICE)"
gpu: $(tested)  ## in at most 12 minutes, what a GPU should tell, into build/gpu/
	@exec $(python) .ci/gpu.py --device "$(DEVICE)"
# Threads that wait by spinning stand in each other's way, and two processes with a thread each take
# less time than one with two; a lesson's cells stay in one of them.
test test-all nbval: export OMP_WAIT_POLICY ?= passive
# Freed memory is kept, since page faults are a third of the time of some lessons (lesson 7).
test test-all nbval: export MALLOC_MMAP_MAX_ := 0
test test-all nbval: export MALLOC_TRIM_THRESHOLD_ := 1099511627776
test test-all nbval: export TQDM_DISABLE := 1
test test-all: export OMP_NUM_THREADS ?= 1
parallel := $(pytest) --numprocesses 2 --dist loadfile --no-loadscope-reorder
test: lint $(published)  ## what a change can break: lint, unit tests, each lesson executed once
	$(python) -m tests.lessons.tried
	$(parallel) -m "not whole" build/tried tests
test-all: test  ## then all that takes long: full sizes, editions, Colab's packages, kills
	$(parallel) -m whole
nbval: $(tested)  ## execute lessons, and answers behind them, and compare their saved outputs
	@$(python) -m tests.lessons.tried $(LESSON) && exec $(pytest) build/tried
outputs: $(made)  ## execute lessons and save their outputs in place, and the picture of README
	@exec $(python) -m helpers.tooling.outputs $(if $(TIMINGS),--timings) $(LESSON)
colab: $(made)  ## make build/colab/ anew: lessons that stand alone, for Colab
	@exec $(python) -m helpers.tooling.colab $(LESSON) $(if $(REPO),--repo="$(REPO)")
student: $(made)  ## make build/student/ anew, lessons with stubs, and build/nbgrader/, their course
	@exec $(python) -m helpers.tooling.student $(LESSON) $(if $(HIDDEN),--hidden "$(HIDDEN)")
html: $(published)  ## make build/html/ anew: the lessons as pages to read, with an index
	@exec $(python) -m helpers.tooling.pages
lab: $(made)  ## open lesson 0 in JupyterLab, the others and build/ beside it
	$(python) -m jupyter lab --allow-root --LabApp.news_url=None --ServerApp.root_dir=. \
		notebooks/00_in_ten_minutes.ipynb
lint: $(tested)  ## check style and format of code and lessons
	$(python) -m ruff check && $(python) -m ruff format --check
types: $(tested)  ## check the annotations of what lessons import from helpers/
	$(python) -m mypy
lock:  ## bring .ci/constraints.txt up to all lists; it keeps what it pins (to renew all, remove it)
	"$(PYTHON)" -m venv build/lock
	build/lock/bin/python -m pip install -q uv==0.13.9
	build/lock/bin/uv pip compile -q --universal --python-version 3.11 --annotation-style line \
		--custom-compile-command "make lock" requirements.txt $(tests) $(pages) -o .ci/constraints.txt
clean:  ## remove what was generated: build/ and caches, not .venv, .venv-jax
	rm -rf build .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find helpers notebooks tests \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +

# Made anew for another interpreter, or if it was left half-made; else brought up to its lists.
$(made): requirements.txt .ci/constraints.txt
	@"$(PYTHON)" .ci/environment.py $@ requirements.txt $(TORCH)
$(tested): $(made) $(tests)
	@"$(PYTHON)" .ci/environment.py $@ $(tests) $(TORCH)
$(published): $(made) $(pages)
	@"$(PYTHON)" .ci/environment.py $@ $(pages) $(TORCH)
