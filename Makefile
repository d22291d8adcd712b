# kvconn: build, test, demo. `make help` lists the targets.
#
# Needs cargo, cc, c++ and python3. Everything else (a venv with pyzmq, pytest and matplotlib) is made under the target directory, and
# left out where it cannot be made.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Cargo uses every processor by itself. Tests that measure deadlines must not run beside each other.
.NOTPARALLEL:

PYTHON ?= python3
CC     ?= cc
# The compiler of libzmq, unless the caller names another: make's own default is g++.
ifeq ($(origin CXX),default)
CXX    := c++
endif
CFLAGS ?= -O2 -g

TARGET  := $(abspath $(or $(CARGO_TARGET_DIR),target))
RELEASE := $(TARGET)/release
VENV    := $(TARGET)/venv
LIB     := $(RELEASE)/libkvconn.so
SONAME  := $(RELEASE)/libkvconn.so.0

STRICT   := -Wall -Wextra -Wpedantic -Werror -Iinclude
C_STRICT := -std=c11 $(STRICT)
# The Python tests of what the C extension does.
PYTHON_SENDS := $(addprefix tests/python/test_,$(addsuffix .py,attempts messages arguments interrupted signals nodes errors))
C_LINK   := -L$(RELEASE) -lkvconn -Wl,-rpath,'$$ORIGIN/../release' -pthread
EXAMPLES := $(patsubst examples_c/%.c,$(TARGET)/examples_c/%,$(wildcard examples_c/*.c))
# Each as C and as C++.
C_TESTS  := $(foreach test,$(patsubst tests/c/%.c,$(TARGET)/tests_c/%,$(wildcard tests/c/*.c)),$(test) $(test)-cpp)

# Read by the tests and by the peers that they start.
export KVCONN_LIB := $(LIB)
export KVCONN_TEST_PYTHON := $(VENV)/bin/python
export KVCONN_C_EXAMPLES := $(TARGET)/examples_c

# make's own flags would reach the make that builds libsodium inside cargo.
CARGO := env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL cargo

# cargo-nextest runs every test in a process of its own; plain `cargo test` must pass as well.
CARGO_TEST := $(shell cargo nextest --version >/dev/null 2>&1 && echo nextest run --no-fail-fast || echo test --no-fail-fast)
# Says what this machine leaves out, with the reason.
LEFT_OUT := PYTHON="$(PYTHON)" VENV="$(VENV)" BINDINGS="$(TARGET)/bindings" scripts/left-out.sh
VENV_OR_SYSTEM_PYTHON = $(if $(wildcard $(VENV)/.stamp),$(VENV)/bin/python,$(PYTHON))
SOAK_SECONDS := $(or $(KVCONN_SOAK_SECONDS),600)

##@ Everyday
.PHONY: help demo test
help: ## this list
	@awk 'BEGIN { FS = ":.*## " } /^##@/ { group = substr($$0, 5); if (!(group in lines)) { order[++count] = group; lines[group] = "" } } \
	     /^[a-z0-9-]+:.*## / { lines[group] = lines[group] sprintf("  %-18s %s\n", $$1, $$2) } \
	     END { for (i = 1; i <= count; i++) printf "\n%s\n%s", order[i], lines[order[i]] }' $(MAKEFILE_LIST)
	@$(LEFT_OUT) demo planned
	@$(LEFT_OUT) test planned

demo: try-venv $(TARGET)/examples_c/failover peer ## kills a node and restarts a rank under load; writes target/demo/failover.svg
	@mkdir -p $(TARGET)/demo
	$(VENV_OR_SYSTEM_PYTHON) examples_c/run_failover.py --peer $(PEER) $(TARGET)/examples_c/failover $(TARGET)/demo/failover.svg
	@$(LEFT_OUT) demo

test: try-venv test-rust test-c test-with-python ## every test that can run here: Rust (with header and ABI), C, C++, Python, bindings, an installed copy
	@$(LEFT_OUT) test

##@ Parts of `test`
.PHONY: test-rust test-c test-python test-with-python
# Some tests have hundreds of peers in one process: more descriptors than the usual soft limit of 1,024.
test-rust: lib $(EXAMPLES) ## Rust unit and integration tests, header, ABI and generated documents
	ulimit -S -n $$(ulimit -H -n) && $(CARGO) $(CARGO_TEST) --package kvconn --package kvconn-peer

test-c: $(EXAMPLES) $(C_TESTS) ## compile the examples with -Werror, compile tests/c as C11 and as C++17 and run them
	@for program in $(C_TESTS); do echo "$$program"; "$$program" || exit 1; done

# The second run goes without the C extension.
test-python: lib peer venv fast matplotlib $(EXAMPLES) ## the Python package against pyzmq peers, with its C extension and without
	$(VENV)/bin/python -m pytest tests/python
	KVCONN_PYTHON_FAST=0 $(VENV)/bin/python -m pytest $(PYTHON_SENDS)

# Whether there is a virtual environment is known only when try-venv is done.
test-with-python:
	@test ! -e $(VENV)/.stamp || $(MAKE) --no-print-directory test-cpp test-python test-bindings test-install

##@ Longer
.PHONY: loom stress
LOOM := RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="$(TARGET)/loom" $(CARGO) test --release --lib
LOOM_TESTS := gate::model pool::model
loom: tools ## the models of the gate and of the memory pool, every interleaving (in its own target directory)
	$(LOOM) --no-run
	@for name in $(LOOM_TESTS); do $(LOOM) -- --list $$name 2>/dev/null | grep -q ': test$$' || \
	    { echo "kvconn: there is no test $$name" >&2; exit 1; }; done
	$(LOOM) -- $(LOOM_TESTS)

stress: lib peer venv fast $(EXAMPLES) ## the tests with stress or soak in their name, for KVCONN_SOAK_SECONDS each (600)
	KVCONN_SOAK_SECONDS=$(SOAK_SECONDS) $(CARGO) test --release -- --include-ignored stress soak
	KVCONN_SOAK_SECONDS=$(SOAK_SECONDS) $(VENV)/bin/python -m pytest tests/python -k 'stress or soak' || test $$? -eq 5

##@ Upkeep
.PHONY: lib examples venv bless fmt lint tools clean
lib: $(SONAME) ## the release library, target/release/libkvconn.so

examples: $(EXAMPLES) ## the C examples, under target/examples_c

venv: $(VENV)/.stamp ## the Python environment of tests and demo, under target/venv

# The demo and the tests do without it, except in CI, which must leave nothing out.
.PHONY: try-venv
try-venv: | tools
	@if reason=$$(scripts/make-venv.sh --check $(PYTHON)); then $(MAKE) --no-print-directory --silent venv matplotlib; \
	    else echo "kvconn: no virtual environment: $$reason" >&2; false; fi || \
	    { test -z "$$CI" && echo "kvconn: going on without it; what is left out is listed at the end" >&2; }

bless: tools ## write the header, docs/{options,status,metrics}.md, abi/ and the options of `kvconn options`
	$(CARGO) run --package xtask

fmt: tools ## cargo fmt --check
	$(CARGO) fmt --check --package kvconn --package kvconn-peer --package xtask

lint: tools ## clippy with warnings denied
	$(CARGO) clippy --workspace --all-targets -- -D warnings

clean: ## remove everything that was built
	$(CARGO) clean
	rm -rf $(VENV) $(TARGET)/examples_c $(TARGET)/examples_cpp $(TARGET)/tests_c $(TARGET)/loom

tools: ## name everything that is missing to build
	@CC="$(firstword $(CC))" CXX="$(firstword $(CXX))" PYTHON="$(PYTHON)" TARGET="$(TARGET)" scripts/check-tools.sh \
	    $(if $(filter demo test test-% venv soak bindings,$(MAKECMDGOALS)),--python)

# Cargo decides what to rebuild, so it runs every time. The linker and the loader find the library by the link with its SONAME.
.PHONY: cargo-release
cargo-release: | tools
	$(CARGO) build --release
$(SONAME): cargo-release
	@ln -sf libkvconn.so $@

$(TARGET)/examples_c/%: examples_c/%.c $(wildcard examples_c/*.h) include/kvconn.h $(SONAME)
	@mkdir -p $(@D)
	$(CC) $(C_STRICT) $(CFLAGS) $< -o $@ $(C_LINK)

$(TARGET)/tests_c/%: tests/c/%.c $(wildcard tests/c/*.h) include/kvconn.h $(SONAME)
	@mkdir -p $(@D)
	$(CC) $(C_STRICT) $(CFLAGS) $< -o $@ $(C_LINK)

$(TARGET)/tests_c/%-cpp: tests/c/%.c $(wildcard tests/c/*.h) include/kvconn.h $(SONAME)
	@mkdir -p $(@D)
	$(CXX) -x c++ -std=c++17 $(STRICT) $(CFLAGS) $< -o $@ $(C_LINK)

# Draws the demo's picture. It must not need a compiler, and when it cannot be installed, everything but the picture works.
.PHONY: matplotlib
matplotlib: venv
	@$(VENV)/bin/python -c 'import matplotlib' 2>/dev/null || \
	    $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: --retries 1 --timeout 15 \
	        -r examples_c/requirements.txt || \
	    echo "kvconn: matplotlib cannot be installed; the demo's picture is left out" >&2

# Made once, and again when the requirements change.
$(VENV)/.stamp: tests/python/requirements.txt scripts/make-venv.sh | tools
	scripts/make-venv.sh $(PYTHON) $(VENV) $<
	@touch $@

# Installation, release builds, packages and bindings.
-include $(wildcard packaging/*.mk)
