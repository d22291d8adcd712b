# kvconn.hpp: its example and its tests.

CXX_STRICT   := -std=c++17 $(STRICT) -Wconversion -Wshadow -Wswitch-enum
CXX_EXAMPLES := $(patsubst examples_cpp/%.cpp,$(TARGET)/examples_cpp/%,$(wildcard examples_cpp/*.cpp))

##@ C++
.PHONY: examples-cpp test-cpp
examples-cpp: $(CXX_EXAMPLES) ## the C++ examples, under target/examples_cpp

test-cpp: lib venv $(CXX_EXAMPLES) ## kvconn.hpp with g++ and clang++, sanitizers, and the engine against real ranks
	CXX="$(CXX)" CC="$(CC)" KVCONN_CXX_EXAMPLES=$(TARGET)/examples_cpp $(VENV)/bin/python -m pytest tests/cpp

$(TARGET)/examples_cpp/%: examples_cpp/%.cpp include/kvconn.hpp include/kvconn.h $(SONAME)
	@mkdir -p $(@D)
	$(CXX) $(CXX_STRICT) $(CFLAGS) $< -o $@ $(C_LINK)
