# The C extension of the Python package, and the benchmark of sends from Python.

FAST := python/kvconn/_fast.abi3.so

##@ Python
.PHONY: fast bench-python
fast: venv $(FAST) ## the Python package's C extension, in place; says why where it cannot be built

$(FAST): python/kvconn/_fastmodule.c include/kvconn.h scripts/build-fast.sh | venv
	scripts/build-fast.sh $(VENV)/bin/python $(firstword $(CC))

$(TARGET)/bench/python-sink: benches/python/sink.c
	@mkdir -p $(@D)
	$(CC) -std=c11 -Wall -Wextra -Wpedantic -Werror $(CFLAGS) $< -o $@

bench-python: lib fast $(TARGET)/bench/python-sink ## sends from Python: extension and ctypes against pyzmq, with a C peer
	$(VENV)/bin/python benches/python/bench.py $(TARGET)/bench/python-sink $(TARGET)/bench/python.json
