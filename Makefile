# Everything a developer does here, with only Python and make to begin with.

PYTHON ?= python3
BIN := .venv/bin
ARGS ?=
ENGINE ?= docker
# Number of processes that run tests: one more than cores, because tests wait for other processes for a third of their
# time. A later -n in ARGS wins: -n 0 runs them in one, as a debugger needs it.
WORKERS ?= $(shell expr $$(nproc) + 1)

.DEFAULT_GOAL := help
.PHONY: help setup demo observe fleet test-fleet quick test vllm test-vllm kserve test-kserve test-terraform check format bench bench-llm bench-tools docs deploy-files cast clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/.dev-all ## Make .venv with everything that development needs

demo: .venv/.demo ## Serve the example models and send them a picture (ARGS=--once ends by itself, ARGS=--load sends more)
	$(BIN)/python examples/demo.py $(ARGS)

observe: need-prometheus need-prometheus-alertmanager .venv/.observe ## Show metrics, limits, alerts and dashboards with Prometheus and Alertmanager (ARGS=--once ends by itself)
	$(BIN)/python examples/observe.py $(ARGS)

fleet: need-prometheus need-haproxy .venv/.fleet ## Show autoscaling under load in three minutes, then end (needs Debian's haproxy and prometheus; ARGS go to conch fleet demo)
	$(BIN)/conch fleet demo --output=demo-output/fleet $(filter-out --once,$(ARGS))

quick: .venv/.dev ## Run linter, formatter and the unit tests that are not slow, two minutes of processor time (ARGS go to pytest)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -q -n $(WORKERS) -m "not slow" tests/unit tests/test_architecture.py $(ARGS)

# What asks a server from outside, which tests/test_wheel.py runs on the compiled package.
ON_THE_WHEEL := tests/server/conformance tests/server/robustness

test: check ## Run the checks and all tests, up to three that failed again alone (ARGS go to pytest)
	$(BIN)/python -m tools.run_tests -n $(WORKERS) $(or $(ARGS),$(ON_THE_WHEEL:%=--ignore=%))

ROOMS := base domain machine protocols server measure operate check clients

.PHONY: $(ROOMS:%=test-%)
$(ROOMS:%=test-%): test-%: .venv/.dev-all
	$(BIN)/python -m pytest -n $(WORKERS) tests/unit/$* $(wildcard tests/$*) $(ARGS)

vllm: .venv/.dev-all ## Make .bench/vllm-venv, where the vllm engine and its tests find vLLM (3.4 GB)
	$(BIN)/python -m benchmarks.harness.vllm_install

test-vllm: vllm ## Run the tests that need vLLM, which other runs skip where it is missing (ARGS go to pytest)
	$(BIN)/python -m pytest -m vllm $(ARGS)

kserve: .venv/.dev-all ## Make .bench/kserve-venv with KServe's Python packages, which tests use (550 MB)
	$(BIN)/python -m tests.operate.kserve.environment

test-kserve: kserve ## Run the tests that need it, which other runs skip where it is missing (ARGS go to pytest)
	$(BIN)/python -m pytest -m kserve $(ARGS)

test-terraform: .venv/.dev-all ## Run all tests of the blueprint for EKS; make test omits those that take minutes
	CONCH_TEST_TERRAFORM=1 $(BIN)/python -m pytest tests/operate/terraform $(ARGS)

test-fleet: .venv/.dev-all ## Run the tests of conch fleet that take minutes: nginx, HTTP, KEDA (ARGS go to pytest)
	CONCH_TEST_FLEET=1 $(BIN)/python -m pytest tests/operate/fleet $(ARGS)

check: .venv/.dev-all ## Run linter, formatter, type checker, import contract, spelling and style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/codespell
	$(BIN)/python -m tests.test_language

format: .venv/.dev ## Format the code and fix what the linter can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.dev-all ## Compare with Triton on the same models (ARGS go to the benchmark)
	$(BIN)/python -m benchmarks.run $(ARGS)
	$(if $(ARGS),,$(BIN)/python -m benchmarks.frontends)
	$(if $(ARGS),,$(BIN)/python -m benchmarks.remote)
	$(if $(ARGS),,$(BIN)/python -m benchmarks.gpu_sampling)
	$(if $(ARGS),,$(BIN)/python -m benchmarks.scrapes)
	$(if $(ARGS),,$(BIN)/python -m benchmarks.limits)
	$(if $(ARGS),,$(BIN)/python -m benchmarks.event_log)

bench-llm: vllm ## Compare served language models with their engines and with vLLM's server (ARGS go to it)
	$(BIN)/python -m benchmarks.llm $(ARGS)

bench-tools: .venv/.dev-all ## Compare conch bench with wrk, h2load, perf_analyzer, aiperf and GuideLLM (ARGS go to it)
	$(BIN)/python -m benchmarks.load_tools $(ARGS)

docs: .venv/.dev ## Write the reference pages and the code map from the code
	$(BIN)/python -m tools.flags_page
	$(BIN)/python -m tools.check_page
	$(BIN)/python -m tools.commands_page
	$(BIN)/python -m tools.degradations_page
	$(BIN)/python -m tools.endpoints_page
	$(BIN)/python -m tools.metrics_page
	$(BIN)/python -m tools.openai_fields_page
	$(BIN)/python -m tools.security_page
	$(BIN)/python -m tools.code_map
	$(BIN)/python -m tools.autoscaling_page
	$(BIN)/python -m tools.readme_chart
	$(BIN)/python -m tools.batching_animation

cast: .venv/.demo ## Record the terminal session of the README from a real run (needs unshare --net)
	$(BIN)/python -m tools.terminal_cast

deploy-files: .venv/.dev-all ## Write the generated files of deploy/, with Helm what the chart renders
	$(BIN)/python -m tools.deploy_files

.PHONY: wheel test-wheel image test-image
wheel: .venv/bin/python ## Build the compiled wheel into dist/ (ARGS="--machine aarch64" for arm64, from any machine)
	$(BIN)/python -m tools.wheel $(ARGS)

test-wheel: .venv/.dev-all ## Build wheels for x86-64 and arm64 and run them in bare Debian systems; needs root (ARGS go to pytest)
	CONCH_TEST_WHEEL=1 $(BIN)/python -m pytest -n 0 -o faulthandler_timeout=0 tests/test_published_wheel.py $(ARGS)

image: ## Build the container image with docker (ENGINE=podman; ARGS="--build-arg FLAVOUR=openvino" for another flavour)
	$(ENGINE) build -f deploy/Dockerfile -t conch $(ARGS) .

test-image: .venv/.dev-all ## Build the image with podman and run it; needs root, runc and mmdebstrap (ARGS go to pytest)
	CONCH_TEST_IMAGE=1 $(BIN)/python -m pytest -n 0 tests/operate/image $(ARGS)

clean: ## Remove the environment and what tools leave behind
	rm -rf .venv .bench .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist demo-output
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Programs that a demonstration runs, asked for before an installation that takes a minute. Debian's packages have the
# programs' names; elsewhere Alertmanager's lacks the prefix.
need-%:
	@PATH="$$PATH:/usr/local/sbin:/usr/sbin:/sbin"; command -v $* >/dev/null || command -v $(*:prometheus-%=%) >/dev/null \
		|| { echo "$* is not on PATH; on Debian and Ubuntu: apt-get install $*" >&2; exit 1; }

# The stamps are older than pyproject.toml when the dependencies may have changed. A demo needs less than development,
# and an environment for development is good for a demo.
.venv/.dev: pyproject.toml | .venv/bin/python
	@echo "Installing what the quick tests need into .venv; this takes one to four minutes."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch .venv/.dev .venv/.fleet

.venv/.dev-all: pyproject.toml | .venv/bin/python
	@echo "Installing what development needs into .venv; this can take a few minutes."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev-all]'
	@touch .venv/.dev .venv/.dev-all .venv/.demo .venv/.observe .venv/.fleet

.venv/.demo: pyproject.toml | .venv/bin/python
	@echo "Installing what the demo needs into .venv; this can take a few minutes."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[examples]'
	@touch .venv/.demo

.venv/.observe: pyproject.toml | .venv/bin/python
	@echo "Installing what the demonstration needs into .venv; this can take a few minutes."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[examples,monitoring]'
	@touch .venv/.demo .venv/.observe

.venv/.fleet: pyproject.toml | .venv/bin/python
	@echo "Installing what the demonstration needs into .venv; this can take a few minutes."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[client,deploy]'
	@touch .venv/.fleet

.venv/bin/python:
	$(PYTHON) -m venv .venv
