##@ Benchmarks
.PHONY: bench bench-quick bench-threads bench-scale limits
bench: tools matplotlib ## the C API in turns with raw libzmq: table, JSON and plot in target/bench (under 5 minutes)
	$(VENV)/bin/python benches/run.py

bench-quick: tools matplotlib ## the same with fewer cases and rounds (under a minute)
	$(VENV)/bin/python benches/run.py --quick

bench-threads: tools ## 2 to 256 threads send to one connection, in turns with raw libzmq behind a mutex (4 minutes)
	$(PYTHON) benches/threads.py

bench-scale: lib venv ## thousands of connections: descriptors, memory, mass endings, floods of dials (about 5 minutes)
	$(VENV)/bin/python benches/scale.py $(LIB) $(SCALE)

limits: lib matplotlib ## measures docs/limits.svg and the table in docs/limits.md: 100 to 6000 connections (about 5 minutes)
	$(VENV)/bin/python benches/limits.py $(LIB)
