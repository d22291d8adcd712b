##@ Benchmarks
.PHONY: bench bench-quick bench-scale
bench: tools matplotlib ## the C API in turns with raw libzmq: table, JSON and plot in target/bench (under 5 minutes)
	$(VENV)/bin/python benches/run.py

bench-quick: tools matplotlib ## the same with fewer cases and rounds (under a minute)
	$(VENV)/bin/python benches/run.py --quick

bench-scale: lib venv ## thousands of connections: descriptors, memory, mass endings, floods of dials (about 5 minutes)
	$(VENV)/bin/python benches/scale.py $(LIB) $(SCALE)
