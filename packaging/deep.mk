# The deep proofs, and the soak run.

MINUTES ?= 10
STEPS   ?=

##@ Longer
.PHONY: check-deep soak
check-deep: tools venv $(EXAMPLES) ## sanitizers, valgrind, models, fuzzing, hostile peers and networks; STEPS="loom asan" runs some
	@$(PYTHON) tests/deep/check.py $(STEPS)

soak: venv $(TARGET)/deep/soak ## ranks are killed, stopped and restarted under load, for MINUTES (10); a table and a verdict
	@$(VENV)/bin/python tests/deep/soak.py $(TARGET)/deep/soak $(MINUTES)

$(TARGET)/deep/soak: tests/deep/soak.c include/kvconn.h $(SONAME)
	@mkdir -p $(@D)
	$(CC) $(C_STRICT) $(CFLAGS) $< -o $@ $(C_LINK)
