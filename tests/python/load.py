"""Bounds of time on a machine that has other things to do.

As in tests/common/load.rs: what a sleeper is woken too late, added up, is what the machine's load excuses. It sleeps in a
process of its own. A thread of this process would be late for the interpreter's lock too, and that must not be excused.
"""

import ctypes
import mmap
import os
import subprocess
import sys
import tempfile
import time

SAMPLER = """
import ctypes, mmap, os, sys, time
with open("/proc/self/timerslack_ns", "w") as slack:  # else each nap is 50 µs too long on an idle machine
    slack.write("1")
cells = (ctypes.c_double * 2).from_buffer(mmap.mmap(0, 16))
parent = os.getppid()
while os.getppid() == parent:
    cells[1] = due = time.monotonic() + 0.001
    time.sleep(0.001)
    cells[0] += max(0.0, time.monotonic() - due)
"""

_samplers = {}  # of each process: a forked child starts its own


def _late():
    """Seconds too late, in all, the nap that is overdue at this moment included."""
    if os.getpid() not in _samplers:
        with tempfile.TemporaryFile() as file:
            file.write(bytes(16))
            file.flush()
            process = subprocess.Popen([sys.executable, "-S", "-c", SAMPLER], stdin=file)
            _samplers.clear()
            _samplers[os.getpid()] = process, (ctypes.c_double * 2).from_buffer(mmap.mmap(file.fileno(), 16))
        process, cells = _samplers[os.getpid()]
        while cells[1] == 0:
            assert process.poll() is None, "the sampler has ended"
            time.sleep(0.001)
    late, due = _samplers[os.getpid()][1]
    return late + max(0.0, time.monotonic() - due)


class Stopwatch:
    """Measures from its start."""

    def __init__(self):
        self._late = _late()
        self.begun = time.monotonic()

    def elapsed(self):
        return time.monotonic() - self.begun

    def excused(self):
        """What the machine's load excuses."""
        return _late() - self._late

    def at_most(self, most, what="it", took=None):
        """Fails when more than `most` seconds have passed, or when what `took` so long in the meantime was longer."""
        took = self.elapsed() if took is None else took
        excused = self.excused()
        assert took < most + excused, f"{what} took {took:.3f} s, allowed are {most:.3f} s and {excused:.3f} s for the load"
