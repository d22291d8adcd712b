"""A subinterpreter that has used kvconn ends without a trace."""

import os
import subprocess
import sys
import textwrap

import pytest

from conftest import ROOT

PRELUDE = f"""
import sys
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

def run(script):
    number = interpreters.create("legacy") if sys.version_info >= (3, 13) else interpreters.create(isolated=False)
    interpreters.run_string(number, "import sys; sys.path.insert(0, {str(ROOT / 'python')!r})\\n" + script)
    interpreters.destroy(number)
"""

SETS_LOG = """
import kvconn
lines = []
kvconn.set_log(lambda level, line: lines.append(line), kvconn.LOG_DEBUG)
kvconn.connect(ENDPOINT, wait_ms=5000)
assert kvconn.send_to(ENDPOINT, [b"from a subinterpreter"])[1]
"""


def has_subinterpreters():
    try:
        import _interpreters  # noqa: F401
    except ImportError:
        try:
            import _xxsubinterpreters  # noqa: F401
        except ImportError:
            return False
    return True


def program(lib, text):
    command = [sys.executable, "-X", "faulthandler", "-c", PRELUDE + textwrap.dedent(text)]
    # Freed memory is overwritten, so that its use is seen.
    environment = {**os.environ, "KVCONN_LIB": str(lib), "PYTHONMALLOC": "debug"}
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert result.returncode == 0, (result.returncode, result.stdout, result.stderr)
    return result.stdout


@pytest.mark.skipif(not has_subinterpreters(), reason="this Python has no subinterpreters")
def test_a_subinterpreter_that_has_set_the_log_ends_and_the_library_logs_on(lib, peer):
    receiver, other = peer("--keep"), peer()
    script = SETS_LOG.replace("ENDPOINT", repr(receiver.endpoint))
    output = program(
        lib,
        f"""
        import gc, time
        sys.path.insert(0, {str(ROOT / 'python')!r})
        run({script!r})
        gc.collect()
        import kvconn
        for _ in range(50):  # lines for a function that is gone, unless its interpreter has ended the log
            conn = kvconn.connect({other.endpoint!r}, wait_ms=5000)
            kvconn.send(conn, [b"x"])
            kvconn.disconnect(conn)
        time.sleep(0.3)
        kvconn.shutdown()
        print("ended")
        """,
    )
    assert output == "ended\n"
    receiver.expect(1)
    assert receiver.messages() == [[b"from a subinterpreter"]]


@pytest.mark.skipif(not has_subinterpreters(), reason="this Python has no subinterpreters")
def test_the_main_interpreter_has_no_exit_hook_for_the_log(lib):
    """An exit hook could wait for a log function that hangs."""
    text = f"""
    sys.path.insert(0, {str(ROOT / 'python')!r})
    import atexit, kvconn
    before = atexit._ncallbacks()
    kvconn.set_log(lambda level, line: None, kvconn.LOG_DEBUG)
    print(atexit._ncallbacks() - before)
    """
    assert program(lib, text) == "0\n"
