# kvconn on aarch64, built on another machine by Debian's cross compiler and run by qemu-user.
#
# On an aarch64 machine `make lib` and `make test` do it all, and nothing of this file is needed.

ARM_TRIPLE := aarch64-unknown-linux-gnu
ARM_GNU    := aarch64-linux-gnu
ARM        := $(TARGET)/$(ARM_TRIPLE)
ARM_SONAME := $(ARM)/release/libkvconn.so.0
ARM_CARGO  := env CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$(ARM_GNU)-gcc $(CARGO)
# qemu-user has either name. The sysroot has the C library of Debian's package libc6-arm64-cross.
ARM_QEMU   := $(or $(shell command -v qemu-aarch64-static || command -v qemu-aarch64),qemu-aarch64-static)
ARM_RUN    := $(ARM_QEMU) -L /usr/$(ARM_GNU)

# For examples_c/failover.c: an emulated rank that starts takes the processor from the others for longer than a second.
ARM_SLOW   := -DSEND_MS=20000

ARM_C_TESTS  := $(foreach test,$(patsubst tests/c/%.c,$(ARM)/tests_c/%,$(wildcard tests/c/*.c)),$(test) $(test)-cpp)
ARM_EXAMPLES := $(patsubst examples_c/%.c,$(ARM)/examples_c/%,$(wildcard examples_c/*.c))
# qemu-user cuts TCP_INFO to 4 bytes, so nothing is known to be acknowledged there. Of the tests of the C examples these do
# not need it. The other two are that of the flush of 100 MB and that of the demo. Full names: pytest fails if one is gone.
ARM_WITHOUT  := KVCONN_TEST_WITHOUT_TCP_INFO=1
ARM_PYTEST   := $(patsubst %,'tests/python/test_examples.py::test_%', \
                the_quickstart_sends_one_message[quickstart] \
                the_quickstart_says_why_nothing_was_accepted[quickstart] \
                the_event_loop_serves_the_living_until_the_last_is_lost \
                an_embedding_for_nobody_is_not_accepted) tests/python/test_failover.py

##@ Other machines
.PHONY: lib-aarch64 peer-aarch64 check-aarch64 check-aarch64-all check-aarch64-kernel check-aarch64-kernel-all
lib-aarch64: | tools ## the release library for aarch64, by Debian's cross compiler: target/aarch64-unknown-linux-gnu/release
	$(ARM_CARGO) build --release --lib --target $(ARM_TRIPLE)
	@ln -sf libkvconn.so $(ARM_SONAME)

peer-aarch64: lib-aarch64
	$(ARM_CARGO) build --release --package kvconn-peer --target $(ARM_TRIPLE)

check-aarch64: ## aarch64: the library, the archive, C tests and C examples, run under qemu-user
	@packaging/aarch64-tools.sh $(ARM_GNU)-gcc $(ARM_GNU)-g++ $(ARM_QEMU) || exit 0; \
	$(MAKE) --no-print-directory check-aarch64-all

# The peers are this machine's pyzmq, in processes of their own. The wrappers make a program of the other machine one of this.
check-aarch64-all: lib venv $(ARM_C_TESTS) $(ARM_EXAMPLES) $(if $(wildcard packaging/archive.sh),$(ARM)/tests_c/peer_lost-static)
	@for program in $(filter $(ARM)/tests_c/%,$^); do echo "$$program"; $(ARM_WITHOUT) $(ARM_RUN) "$$program" || exit 1; done
	@mkdir -p $(ARM)/qemu
	@for program in $(notdir $(ARM_EXAMPLES)); do \
	    printf '#!/bin/sh\nexec $(ARM_RUN) $(ARM)/examples_c/%s "$$@"\n' "$$program" > $(ARM)/qemu/$$program; \
	    chmod +x $(ARM)/qemu/$$program; done
	KVCONN_C_EXAMPLES=$(ARM)/qemu $(VENV)/bin/python -m pytest $(ARM_PYTEST)
	@echo "kvconn: not tested under qemu-user, which cuts TCP_INFO: what is acknowledged. make check-aarch64-kernel does it"

check-aarch64-kernel: ## the same with everything that needs the kernel's counts, in an emulated machine (root)
	@packaging/aarch64-tools.sh $(ARM_GNU)-gcc $(ARM_GNU)-g++ qemu-system-aarch64 debootstrap cpio dpkg-deb || exit 0; \
	$(MAKE) --no-print-directory check-aarch64-kernel-all

check-aarch64-kernel-all: venv peer-aarch64 $(ARM_C_TESTS) $(ARM_EXAMPLES)
	packaging/aarch64-kernel.sh $(ARM) $(ARM)/machine

$(ARM_SONAME): lib-aarch64

$(ARM)/examples_c/%: examples_c/%.c $(wildcard examples_c/*.h) include/kvconn.h $(ARM_SONAME)
	@mkdir -p $(@D)
	$(ARM_GNU)-gcc $(C_STRICT) $(CFLAGS) $(ARM_SLOW) $< -o $@ -L$(ARM)/release -lkvconn -Wl,-rpath,'$$ORIGIN/../release' -pthread

$(ARM)/tests_c/%: tests/c/%.c $(wildcard tests/c/*.h) include/kvconn.h $(ARM_SONAME)
	@mkdir -p $(@D)
	$(ARM_GNU)-gcc $(C_STRICT) $(CFLAGS) $< -o $@ -L$(ARM)/release -lkvconn -Wl,-rpath,'$$ORIGIN/../release' -pthread

$(ARM)/tests_c/%-cpp: tests/c/%.c $(wildcard tests/c/*.h) include/kvconn.h $(ARM_SONAME)
	@mkdir -p $(@D)
	$(ARM_GNU)-g++ -x c++ -std=c++17 $(STRICT) $(CFLAGS) $< -o $@ -L$(ARM)/release -lkvconn -Wl,-rpath,'$$ORIGIN/../release' -pthread

$(ARM)/tests_c/%-static: tests/c/%.c $(wildcard tests/c/*.h) include/kvconn.h $(ARM)/archive/libkvconn.a
	$(ARM_GNU)-g++ -x c++ -std=c++17 $(STRICT) $(CFLAGS) $< -x none -o $@ $(ARM)/archive/libkvconn.a -pthread -ldl -lm

$(ARM)/archive/libkvconn.a: $(ARM_SONAME)
	@mkdir -p $(@D)
	LD=$(ARM_GNU)-ld OBJCOPY=$(ARM_GNU)-objcopy AR=$(ARM_GNU)-ar NM=$(ARM_GNU)-nm STRIP=$(ARM_GNU)-strip \
	    packaging/archive.sh $(ARM)/release/libkvconn.a $@
