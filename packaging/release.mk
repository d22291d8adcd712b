# Release builds: for every Linux with glibc 2.28 or newer. docs/release.md explains them.

RELEASE_ARCHES ?= $(shell uname -m)
RELEASE_GLIBC  := 2.28
DIST           := $(TARGET)/dist
ZIG            := $(TARGET)/zig
ZIG_VENV       := $(TARGET)/zig-venv

##@ Release
.PHONY: release check-release check-reproducible check-old-glibc
release: $(ZIG_VENV)/.stamp venv | tools ## what is shipped, into target/dist and target/wheels: RELEASE_ARCHES="x86_64 aarch64"; 10 minutes for each
	packaging/release-tools.sh $(RELEASE_ARCHES)
	@set -e; for arch in $(RELEASE_ARCHES); do set -x; \
	    packaging/release-build.sh $$arch $(ZIG)/$$arch $(ZIG_VENV) $(RELEASE_GLIBC); \
	    packaging/release-dist.sh $$arch $(ZIG)/$$arch $(DIST); \
	    { set +x; } 2>/dev/null; done
	rm -rf $(ZIG) $(foreach arch,$(RELEASE_ARCHES),$(WHEELS)/*_$(arch).whl)
	@$(MAKE) --no-print-directory wheel KVCONN_WHEEL_LIBRARY="$(foreach arch,$(RELEASE_ARCHES),$(DIST)/$(arch)/lib/libkvconn.so)"
	@$(MAKE) --no-print-directory check-release

check-release: lib peer venv ## tests of what `make release` has made: needed libraries, glibc, symbols, paths, C programs, Python
	$(VENV)/bin/python -m pytest tests/python/test_release.py
	@if [ -e $(DIST)/$$(uname -m)/lib/libkvconn.so ]; then \
	    KVCONN_LIB=$(DIST)/$$(uname -m)/lib/libkvconn.so $(VENV)/bin/python -m pytest $(RELEASE_PYTEST) && \
	    KVCONN_TEST_DIST=$(DIST)/$$(uname -m) $(VENV)/bin/python -m pytest tests/install --basetemp=$(TARGET)/test-install; fi

# What the release library must do as well as the everyday one: the ledger, CURVE, zero-copy buffers, beside pyzmq.
RELEASE_PYTEST := $(patsubst %,tests/python/test_%.py,ffi messages curve owned beside_pyzmq)

check-reproducible: $(ZIG_VENV)/.stamp venv ## builds the release of this commit once more, elsewhere; both must be the same, byte for byte
	packaging/check-reproducible.sh $(DIST) $(WHEELS) $(TARGET)/reproducible $(VENV) $(ZIG_VENV) $(RELEASE_GLIBC) $(RELEASE_ARCHES)

check-old-glibc: ## the C tests with the release for this machine, compiled and run on Debian 11 (glibc 2.31; root)
	packaging/old-glibc.sh $(DIST) $(TARGET)/old-glibc

$(ZIG_VENV)/.stamp: packaging/requirements.txt scripts/make-venv.sh | tools
	scripts/make-venv.sh $(PYTHON) $(ZIG_VENV) $<
	@touch $@
