# The adapter for SGLang against an unmodified SGLang, which is downloaded from PyPI (39 MB) and never committed.

export SGLANG := $(TARGET)/sglang

##@ Python
.PHONY: sglang check-sglang
test-python: sglang
sglang: venv ## an unmodified SGLang for the tests, from PyPI; without it they are skipped
	@test -e $(SGLANG)/ready || $(VENV)/bin/python tests/sglang/get.py $(SGLANG) || \
	    echo "kvconn: SGLang cannot be had from PyPI; the tests of its adapter are skipped" >&2

check-sglang: lib fast sglang ## the whole table of faults, stock against kvconn, and the long runs (ten minutes)
	KVCONN_SGLANG=all $(VENV)/bin/python -m pytest tests/python/test_sglang.py -rs -s
