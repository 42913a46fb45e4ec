# `make` lists what there is to do. All of it happens in .venv, which is made first if need be.

PYTHON ?= python3
DEVICE ?= auto
LESSON ?=
PARAMS ?=
LAX ?=
TIMINGS ?=
LOOKED ?=
REPO ?=
SUBMISSIONS ?=
HIDDEN ?=
NBGRADER ?=
TORCH ?=

variables := PYTHON DEVICE LESSON PARAMS LAX TIMINGS LOOKED REPO SUBMISSIONS HIDDEN NBGRADER TORCH
read_by_run := DEVICE LESSON PARAMS TORCH
read_by_test := TORCH
read_by_test-all := TORCH
read_by_nbval := LESSON LAX TORCH
read_by_outputs := LESSON TIMINGS LOOKED
read_by_bench := DEVICE
read_by_colab := LESSON REPO
read_by_html := REPO
read_by_student := LESSON NBGRADER $(if $(NBGRADER),HIDDEN)
read_by_slides := LESSON
read_by_grade := LESSON SUBMISSIONS HIDDEN
given := $(foreach v,$(.VARIABLES),$(if $(findstring command line,$(origin $v)),$v))
unknown := $(filter-out $(variables),$(given))
ifneq ($(unknown),)
$(error there is no variable $(unknown): choose among $(variables))
endif
goals := $(or $(MAKECMDGOALS),help)
unread := $(filter-out PYTHON $(foreach goal,$(goals),$(read_by_$(goal))),$(given))
ifneq ($(unread),)
$(error make $(goals) does not read $(unread))
endif
ifneq ($(filter-out 1,$(LAX) $(TIMINGS) $(LOOKED) $(NBGRADER)),)
$(error LAX, TIMINGS, LOOKED and NBGRADER are 1 or not given)
endif

# Another torch has an environment of its own. Saved outputs are those of the pinned one.
pinned := $(shell sed -n 's/^torch==\([0-9.]*\).*/\1/p' requirements.txt)
environment := $(if $(TORCH),build/torch-$(TORCH),.venv)
python := $(environment)/bin/python
made := $(environment)/made-by-$(subst /,-,$(PYTHON))
lax := $(if $(LAX)$(filter-out $(pinned),$(TORCH)),--nbval-lax)
lists := requirements.txt tests/requirements.txt
lock := .ci/constraints.txt

.DEFAULT_GOAL := help
.PHONY: run bench test test-all nbval outputs colab student slides grade html report lab lint lock clean help

run: $(made)  ## execute lessons on DEVICE into build/<device>/, and report
	@exec $(python) -m helpers.tooling.run $(LESSON) --device "$(DEVICE)" --params $(PARAMS)

# First the peers of lesson 7 that are not there yet. BackPACK depends on torchvision, which would
# bring another torch: so without its dependencies, but those that it imports. JAX has an
# environment of its own.
backpack := backpack-for-pytorch==1.7.1 einops==0.8.2 unfoldNd==0.2.3
jax := jax==0.10.2 jaxlib==0.10.2 ml_dtypes==0.6.0 numpy==2.4.6 opt_einsum==3.4.0 scipy==1.17.1
bench: $(made)  ## measure all candidates of lesson 7 on DEVICE into build/<device>/bench.json
	@$(python) -c "import backpack" 2> /dev/null \
		|| $(python) -m pip install --quiet --no-deps $(backpack) \
		|| echo "BackPACK could not be installed, and is not measured" >&2
	@.venv-jax/bin/python -c "import jax" 2> /dev/null \
		|| { "$(PYTHON)" -m venv .venv-jax && .venv-jax/bin/python -m pip install --quiet $(jax); } \
		|| echo "JAX could not be installed, and is not measured" >&2
	@exec $(python) -m helpers.tooling.bench --device "$(DEVICE)"

# Threads that wait by spinning stand in each other's way when other programs use the machine, and
# a lesson then takes several times as long. Waiting asleep costs a third at most, and only in
# speed, which is not compared.
test test-all nbval: export OMP_WAIT_POLICY ?= passive

# Two processes with a thread each take less time than one with two, and not more memory than two
# lessons do. A lesson's cells stay in one of them; what takes long comes first (tests/conftest.py).
test test-all: export OMP_NUM_THREADS ?= 1
pytest := $(python) -m pytest $(lax) --numprocesses 2 --dist loadfile --no-loadscope-reorder

test: lint  ## what a change can break: lint, unit tests, each lesson executed once
	$(pytest) -m "not whole" $(if $(TORCH),--tried="make test")

test-all: test  ## then all that takes long: full sizes, editions, Colab's packages, kills
	$(pytest) -m whole $(if $(TORCH),--tried="make test-all")

nbval: $(made)  ## execute lessons and compare their saved outputs
	@lessons=$$($(python) -m helpers.tooling.lesson.files $(LESSON)) \
		&& exec $(python) -m pytest $(lax) $(if $(LESSON),,$(if $(TORCH),--tried="make nbval")) $$lessons

outputs: $(made)  ## execute lessons and save their outputs in place, and the picture of README
	@$(python) -m helpers.tooling.outputs $(if $(TIMINGS),--timings) $(if $(LOOKED),--looked) $(LESSON)
	@$(python) -m helpers.tooling.picture

colab: $(made)  ## make build/colab/ anew: lessons that stand alone, for Colab
	@exec $(python) -m helpers.tooling.colab $(LESSON) $(if $(REPO),--repo="$(REPO)")

student: $(made)  ## make build/student/ anew: lessons with stubs in place of solutions
	@exec $(python) -m helpers.tooling.$(if $(NBGRADER),nbgrader,student) $(LESSON) \
		$(if $(HIDDEN),--hidden "$(HIDDEN)")

slides: $(made)  ## make build/slides/ anew: lessons as slides, each in one file
	@exec $(python) -m helpers.tooling.slides $(LESSON)

grade: $(made)  ## grade what a class handed in for LESSON into build/grades/, and go on after a stop
	@exec $(python) -m helpers.tooling.grade "$(LESSON)" "$(SUBMISSIONS)" \
		$(if $(HIDDEN),--hidden "$(HIDDEN)")

html: $(made)  ## make build/html/ anew: the lessons as pages to read, with an index
	@exec $(python) -m helpers.tooling.pages

report: $(made)  ## set runs side by side in build/report.html: how they went, which outputs differ
	@exec $(python) -m helpers.tooling.report

# The collection is the root, so that what `make run` left in build/ lies beside the lessons.
lab: $(made)  ## open lesson 0 in JupyterLab, the others and build/ beside it
	$(python) -m jupyter lab --allow-root --LabApp.news_url=None --ServerApp.root_dir=. \
		notebooks/00_in_ten_minutes.ipynb

lint: $(made)  ## check style and format of code and lessons
	$(python) -m ruff check
	$(python) -m ruff format --check

# Not for every day: renew .ci/constraints.txt, the versions of all that both lists bring, as pip
# chooses them today. With setuptools, without builds (+cpu), and without what only torch for CUDA
# brings, which pins it by itself.
lock:
	"$(PYTHON)" -m venv --clear build/lock-env
	build/lock-env/bin/python -m pip install $(lists:%=-r %)
	echo "# Made by \`make lock\`: what requirements.txt and tests/requirements.txt bring." > build/lock
	build/lock-env/bin/python -m pip freeze --all | sed -E 's/\+[a-z0-9]+$$//' \
		| grep -vE '^(pip==|nvidia-|cuda-|triton==)' >> build/lock
	mv build/lock $(lock)

clean:  ## remove what was generated: build/ and caches, not .venv, .venv-jax
	rm -rf build .pytest_cache .ruff_cache .hypothesis
	find helpers notebooks tests \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune \
		-exec rm -rf {} +

help:  ## list this
	@echo "make TARGET [VARIABLE=value ...]"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-8s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "  DEVICE=auto      run, bench: where, auto (the best there is), cpu, cuda, cuda:1 or mps"
	@echo "  LESSON=\"01 03\"   run, outputs, nbval, colab, student, slides: only these; grade: one"
	@echo "  PARAMS=\"...\"     run: parameters, for example PARAMS=\"batch_size=32 dataset=random\""
	@echo "  LAX=1            nbval: compare only cells tagged nbval-check-output (GPU)"
	@echo "  TORCH=2.15.0     run, test, test-all, nbval: with that torch, installed in build/torch-2.15.0/"
	@echo "  TIMINGS=1        outputs: renew those that are not compared, too"
	@echo "  LOOKED=1         outputs: run nothing; somebody read each figure's alternative text beside it"
	@echo "  REPO=owner/name  colab, html: the repository on GitHub that links lead to"
	@echo "  SUBMISSIONS=dir  grade: the folder with a notebook, or a folder, of each student"
	@echo "  HIDDEN=dir       grade, student NBGRADER=1: the folder with hidden tests, NN_name.py"
	@echo "  NBGRADER=1       student: a course of nbgrader in build/nbgrader/ instead, with solutions"
	@echo "  PYTHON=python3   the interpreter, 3.11 or newer, that makes the environment"

# Made anew for another interpreter, or if it was left half-made; else brought up to the lists.
$(made): $(lists) $(lock)
	@"$(PYTHON)" .ci/environment.py $@ $(TORCH)
