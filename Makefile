# Two commands do everything on a fresh machine with Python >= 3.11 and git:
#   make perf    environment, install, the main job; ends with the result table
#   make test    environment, install, all tests
# And the studies of the model lab, in less than ten minutes: make studies
# What needs CUDA and no numbers, on a machine without a GPU: make cuda
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
CUDA_VENV ?= .venv-cuda
CUDA_BIN := $(CUDA_VENV)/bin
CUDA_INSTALLED := $(CUDA_VENV)/.installed
MODEL ?= small
# Every group of cases is measured in turn; what does not fit into so many seconds is counted, with the command that runs it.
SECONDS ?= 155

# Modules are compiled when they are first imported, and have to be kept: a process that compiles PyTorch's takes ten seconds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: perf gate predict studies memory kernels startup attack site docs versions release test cuda correctness check types format clean

perf: $(INSTALLED)
	$(BIN)/pytest -m perf --model=$(MODEL) --perf-total-budget=$(SECONDS) tests/perf --ignore=tests/perf/test_kernels_compiled.py --ignore=tests/perf/studies

# What the models need on a GPU that is not here, against the saved predictions; nothing is run.
predict: $(INSTALLED)
	$(BIN)/pytest -m perf --perf-predict --model=small,2.7B tests/perf/test_transformer.py
	$(BIN)/pytest -m perf --perf-predict --model=2.7B --context-length=1024 -k "(prefill or decode) and bf16" tests/perf/test_inference.py

# What each optimisation is worth here: precision, compilation, memory, every switch of the lab's model.
studies: $(INSTALLED)
	$(BIN)/pytest -m perf --model=$(MODEL) tests/perf/studies

# docs/memory-study.md: where the models' memory goes, predicted, recorded by PyTorch over nocuda, measured; ten minutes.
memory: $(CUDA_INSTALLED)
	$(CUDA_BIN)/python -m nocuda run -- $(CUDA_BIN)/python -m tests.studies.memory_study > .perflab-memory-study.md
	mv .perflab-memory-study.md docs/memory-study.md

# Every Triton kernel in every configuration that may be chosen: compiled for every GPU architecture, AMD's against their
# baselines, and run in the interpreter on poisoned memory. Says how long it took, and writes the digests of what passed;
# tests check what differs from these, and a fortieth a day. No GPU: minutes the first time.
kernels: $(INSTALLED)
	began=$$(date +%s) && $(BIN)/perflab kernels && \
		PERFLAB_KERNELS=all $(BIN)/pytest -m perf --perf-check=exact --perf-total-budget=1h --perf-arch=gfx942,gfx950 \
			tests/perf/test_kernels_compiled.py && \
		PERFLAB_KERNELS=all $(BIN)/pytest -n 2 --dist worksteal tests/correctness/test_proofs.py && \
		TRITON_INTERPRET=1 $(BIN)/python -m tests.correctness.proofs && \
		echo "every kernel compiled and proven in $$(($$(date +%s) - began)) s"

# What loading the plugin costs a run that has nothing of it, beside other plugins; a minute.
startup: $(INSTALLED)
	$(BIN)/python -m tests.perf.startup

# Damaged files, hostile text and kills, all of them: what the tests try a seeded share of. Two minutes, for every night.
attack: $(INSTALLED)
	PERFLAB_ATTACK=1 $(BIN)/pytest tests/harness/test_damage.py tests/harness/test_escaping.py tests/harness/test_files.py tests/plugin/test_hostile.py

# A test that hangs ends its worker after ten minutes, with all stacks, and fails alone. PyTorch's threads sleep while they
# have no work: spinning, they take the cores from the other worker's processes, a tenth of all processor time.
test: $(INSTALLED)
	OMP_WAIT_POLICY=passive $(BIN)/pytest -n 2 --dist worksteal -o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true \
		tests/harness tests/plugin tests/correctness tests/nocuda tests/untrusted

# Memory and counts of the lab's own cases against baselines/: one operator more in the model fails on every machine. Memory
# and allocations are gated with the threads and instruction set that they were saved with; the run says where they were not.
# Without instructions for it, bf16 is so slow that it needs more time: what does not fit is predicted, and has no baseline.
gate: $(INSTALLED)
	$(BIN)/pytest -m perf --model=tiny --context-length=128 --perf-budget=15 --perf-total-budget=1h --perf-check=exact -k "$(GATED)" \
		tests/perf/test_transformer.py tests/perf/test_attention.py tests/perf/test_attention_memory.py tests/perf/test_fused_kernels.py \
		tests/perf/test_recurrences.py tests/perf/test_inference.py tests/perf/test_parallel.py
	$(BIN)/pytest -m perf --perf-total-budget=1h --perf-check=exact tests/perf/test_kernels_compiled.py
GATED_RANKS = world2-bucketed or world2-overlapped or world2-zero3 or sharded or world4-bucketed
GATED = not compiled and (test_inference and not load or test_parallel and ($(GATED_RANKS)) \
	or not test_inference and not test_parallel and not flex and not triton)

# All pages of docs/ as a site with a search, the API and a map of the files, in build/site; a link that leads nowhere is an error.
# .github/workflows/site.yml publishes it.
site: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# The tests in environments of the lowest versions that pyproject.toml claims, and of each PyTorch since: half an hour and
# 5 GB each. VERSIONS="--only=lowest --python=python3.12 tests/harness" runs less, or with another Python.
versions: $(INSTALLED)
	$(BIN)/python -m tests.studies.versions $(VERSIONS)

# Outputs in README and docs, by running what the pages show (tests/harness/make_docs.py says how): on a quiet machine, ten
# minutes. PAGES=docs/start.md makes one page.
docs: $(INSTALLED)
	$(BIN)/python -m tests.harness.make_docs $(PAGES)

# The files of a release in dist/: built, their metadata checked, the wheel installed into an empty environment, and the
# tutorial run there. .github/workflows/release.yml publishes them.
RELEASE_VENV ?= .venv-release
release: $(INSTALLED)
	$(BIN)/python -m tests.harness.release
	rm -rf build dist $(RELEASE_VENV)
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m twine check --strict dist/*
	$(PYTHON) -m venv $(RELEASE_VENV)
	$(RELEASE_VENV)/bin/python -m pip install --quiet --constraint constraints.txt "$$(echo dist/*.whl)[triton]"
	$(BIN)/python -m tests.harness.make_docs --run --python=$(RELEASE_VENV)/bin/python docs/start.md

correctness: $(INSTALLED)
	$(BIN)/pytest -n 2 --dist worksteal -m correctness

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(MAKE) -j2 --output-sync=target types site
	$(MAKE) test

types: $(INSTALLED)
	$(BIN)/mypy

# CUDA's host side without a GPU (nocuda/README.md), in an environment of its own with PyTorch's CUDA build: its own tests,
# then those that need a CUDA device and none of the numbers that it would compute, then perf cases, whose times are the
# host's and are saved nowhere that counts. Two to three minutes after installing. Left to a GPU: the other stories, whose clock
# is a virtual one that CUDA's events contradict, and files of correctness in which most tests assert what kernels compute.
NOCUDA = $(CUDA_BIN)/python -m nocuda run -- $(CUDA_BIN)/pytest
cuda: $(CUDA_INSTALLED)
	$(NOCUDA) -n 2 --dist worksteal tests/nocuda tests/plugin/test_dry_run.py tests/plugin/test_dry_run_ranks.py tests/plugin/test_fixtures.py \
		tests/correctness/test_build_model.py tests/correctness/test_checkpoints.py tests/correctness/test_training_precision.py \
		tests/correctness/test_attention_needs.py tests/correctness/test_attention_memory.py
	$(NOCUDA) -n 2 --dist worksteal -rs -k "small and fp32 or on_a_gpu or pytorch_s_allocator or while_the_gpu_is_behind or against_real or gpu_state or graph or devices or on_cuda_" \
		tests/correctness/test_predicted_on_cuda.py tests/correctness/test_model_cost.py tests/correctness/test_loader.py \
		tests/harness/test_caching_allocator.py tests/harness/test_gpu_state.py tests/harness/test_cuda_graph.py \
		tests/harness/test_memory.py tests/harness/test_devices.py tests/correctness/test_profile_of_a_call.py \
		$(wildcard tests/correctness/test_predicted_against_real.py)
	# By itself: where the first profile of a process watched no CUDA, no later one sees a kernel.
	$(NOCUDA) -n 2 --dist worksteal tests/harness/test_inference_on_cuda.py
	$(NOCUDA) -m perf --perf-device=cuda --perf-check=off --perf-profile --model=tiny --context-length=128 --perf-budget=1 \
		-k "tiny-128-bf16 and not compiled and not flex" tests/perf/test_transformer.py
	$(NOCUDA) -m perf --perf-device=cuda --perf-check=off --model=tiny --context-length=256 --perf-budget=1 \
		-k "switch and tiny-graph or decode and tiny-256-b1-fp32" tests/perf/test_inference.py
	$(CUDA_BIN)/pytest -m perf --perf-dry-run=h100 --perf-check=strict --model=tiny,2.7B --context-length=128,512 \
		-k "tiny-128 or (step and 2.7B-512)" tests/perf/test_transformer.py

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Installs again only when what is to be installed has changed. Compiling all modules would take most of an installation: few
# are ever imported.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "perflab needs Python 3.11 or newer: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	touch $(INSTALLED)

# Of NVIDIA's packages none is needed: nocuda stands in for the libraries, and triton has the headers and ptxas. `===` in
# the file keeps pip from taking a CPU build that it may know of. A driver's machine needs no such environment.
$(CUDA_INSTALLED): pyproject.toml requirements-cuda.txt
	test -x $(CUDA_BIN)/python || $(PYTHON) -m venv $(CUDA_VENV)
	$(CUDA_BIN)/python -m pip install --quiet --no-compile --no-deps --requirement requirements-cuda.txt
	$(CUDA_BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $(CUDA_INSTALLED)

clean:
	rm -rf $(VENV) $(CUDA_VENV) $(RELEASE_VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .perflab
