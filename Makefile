# Everything one does with stepc, one word each. What a target does is in the script that it calls.
.DEFAULT_GOAL := help
PYTHON ?= python3.12
.PHONY: help setup build demo test test-python test-torch wheel wheels bench gpu-bundle check asan tsan clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' Makefile

setup: ## install what a build needs and is missing: Debian packages, LibTorch into .venv
	@tools/setup build

build: setup ## build everything into build/release
	@tools/build release

demo: ## set up, build stepc, train a 10 M parameter Llama on English text into runs/demo
	@tools/setup demo
	@tools/build --grouped release stepc
	@tools/demo

test: ## set up with PyTorch and transformers, build everything, run every check and test
	@tools/setup test
	@tools/test

test-python: ## build the package for another interpreter and run tests/python there: make test-python PYTHON=python3.12
	@tools/test_python "$(PYTHON)"

test-torch: ## build everything for another torch and run every test there: make test-torch TORCH=2.11.0 [TESTS=tests/parity]
	@tools/test_python "torch==$(TORCH)" $(TESTS)

wheel: ## make dist/stepc-*.whl for .venv's interpreter, or another: make wheel PYTHON=python3.13 [TORCH=2.11.0]
	@TORCH="$(TORCH)" tools/wheel $(if $(filter command environment,$(firstword $(origin PYTHON))),"$(PYTHON)")

wheels: ## make and try the wheels of a release: every CPython that is here, the oldest and the newest torch
	@tools/wheels

bench: ## compare with PyTorch eager, torch.compile and JAX; table and build/bench.json; what capture costs
	@tools/setup bench
	@tools/build release
	@.venv/bin/python benchmarks/bench.py
	@PYTHONPATH=build/release/python .venv/bin/python benchmarks/capture_benchmark.py
	@PYTHONPATH=build/release/python .venv/bin/python benchmarks/mode_benchmark.py
	@PYTHONPATH=build/release/python .venv/bin/python benchmarks/planning_benchmark.py
	@PYTHONPATH=build/release/python .venv/bin/python benchmarks/prediction_benchmark.py
	@PYTHONPATH=build/release/python .venv/bin/python benchmarks/gpu_prediction_benchmark.py
	@.venv/bin/python benchmarks/cluster_prediction_benchmark.py
	@build/release/benchmarks/kernel_benchmark
	@build/release/benchmarks/matmul_benchmark 2 15
	@build/release/benchmarks/epilogue_benchmark 2 15
	@build/release/benchmarks/codegen_benchmark
	@build/release/benchmarks/collective_benchmark
	@.venv/bin/python benchmarks/ranks_benchmark.py
	@.venv/bin/python benchmarks/slow_link_benchmark.py
	@.venv/bin/python benchmarks/pipeline_benchmark.py
	@.venv/bin/python benchmarks/long_context_benchmark.py
	@.venv/bin/python benchmarks/restart_benchmark.py
	@.venv/bin/python benchmarks/goodput.py
	@build/release/benchmarks/checkpoint_benchmark
	@build/release/benchmarks/loader_benchmark

gpu-bundle: ## make build/gpu-bundle, what a machine with a GPU needs to run tools/gpu_stages (needs NVRTC here)
	@tools/gpu_bundle "$(PYTHON)"

check: ## format, tidy, layer directions, names of ops, docs (tools/check --all adds the LibTorch folders)
	@tools/setup test
	@tools/build --configure release
	@tools/check

asan: setup ## build and test the folders without LibTorch under ASan and UBSan
	@tools/build asan
	@ctest --preset asan --parallel "$$(nproc)"

tsan: setup ## build and test the folders without LibTorch, and the executor, under TSan
	@tools/build tsan
	@ctest --preset tsan

clean: ## remove every build folder; keeps .venv and runs
	rm -rf build
