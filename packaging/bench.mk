##@ Benchmarks
.PHONY: bench bench-quick bench-threads bench-scale limits
bench: tools matplotlib fast $(TARGET)/bench/python-sink ## the C API in turns with raw libzmq, and Python: tables, JSON and plot in target/bench (under 5 minutes)
	$(VENV)/bin/python benches/run.py --python-sink $(TARGET)/bench/python-sink

bench-quick: tools matplotlib fast $(TARGET)/bench/python-sink ## the same with fewer cases and rounds (under a minute)
	$(VENV)/bin/python benches/run.py --quick --python-sink $(TARGET)/bench/python-sink

bench-threads: tools ## 2 to 256 threads send to one connection, in turns with raw libzmq behind a mutex (4 minutes)
	$(PYTHON) benches/threads.py

bench-scale: lib venv ## thousands of connections: descriptors, memory, mass endings, floods of dials (about 5 minutes)
	$(VENV)/bin/python benches/scale.py $(LIB) $(SCALE)

limits: lib matplotlib ## measures docs/limits.svg and the table in docs/limits.md: 100 to 6000 connections (about 5 minutes)
	$(VENV)/bin/python benches/limits.py $(LIB)
