# The Python package. docs/python.md explains it.

WHEELS := $(TARGET)/wheels
# The release library, if `make release` has made it; else the one for this machine. KVCONN_WHEEL_LIBRARY names another.
WHEEL_RELEASES := $(wildcard $(TARGET)/dist/*/lib/libkvconn.so)
WHEEL_LIBRARIES = $(or $(KVCONN_WHEEL_LIBRARY),$(WHEEL_RELEASES),$(LIB))
WHEEL_ZIG := $(TARGET)/zig-venv/bin/python

##@ Python
.PHONY: wheel python-tools
wheel: venv $(if $(or $(KVCONN_WHEEL_LIBRARY),$(WHEEL_RELEASES)),,lib) ## the wheel, into target/wheels: from `make release`, else for machines like this one
	@for library in $(WHEEL_LIBRARIES); do \
	    $(VENV)/bin/python packaging/wheel.py --library "$$library" --output $(WHEELS) --zig $(WHEEL_ZIG) --cc "$(CC)" $(WHEEL_OPTIONS) || exit 1; done

# Type checkers, and the checkers of wheels. Tests that need one are skipped without it.
test-python: python-tools
python-tools: venv
	@$(VENV)/bin/python -c 'import abi3audit, auditwheel, mypy, pyright' 2>/dev/null || \
	    $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: --retries 1 --timeout 15 \
	        -r tests/python/requirements-tools.txt || \
	    echo "kvconn: mypy, pyright, auditwheel and abi3audit cannot be installed; their tests are skipped" >&2
