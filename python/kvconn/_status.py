"""`kvconn status`: what a file of metrics says, and what can be seen of a process from outside.

A process is not asked to do anything, except with a dump: a debugger then calls kvconn_dump in it.
"""

import contextlib
import os
import pathlib
import re
import secrets
import shutil
import signal
import subprocess
import sys

# One line of OpenMetrics: name, labels, value.
SAMPLE = re.compile(r'^(kvconn_\w+)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})? (\S+)$', re.M)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
# Metrics that deserve a look if they are not 0, and why.
LOOK_AT = {
    "kvconn_wakeups_rescued_total": "a defect of kvconn",
    "kvconn_connections_stalled": "peers that are alive and do not read",
    "kvconn_messages_unacknowledged_total": "messages that may be lost",
    "kvconn_nodes_failed_total": "peer instances that were given up",
    "kvconn_failure_reports_waiting": "reports that nobody takes: their requests hang in the engine",
    "kvconn_events_lost_total": "nobody reads the events fast enough",
    "kvconn_log_failures_total": "the log is incomplete",
    "kvconn_log_dropped_lines_total": "the log is incomplete",
}
DEBUGGER_SECONDS = 60
# The most that a call in the process takes. The thread that makes it may hold the lock of malloc: then it never returns.
CALL_SECONDS = 5
CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL


def of_metrics(text: str) -> int:
    """Prints a summary of a text that kvconn_metrics_text has written. Returns the exit code."""
    samples = [(name, dict(LABEL.findall(labels)), float(value)) for name, labels, value in SAMPLE.findall(text)]
    if not samples:
        print("kvconn: there are no metrics of kvconn in this text", file=sys.stderr)
        return 1

    def total(name: str, **labels: str) -> int:
        return int(sum(v for n, has, v in samples if n == name and labels.items() <= has.items()))

    for build in (has for name, has, _ in samples if name == "kvconn_build_info"):
        print(f"kvconn {build.get('version')}, libzmq {build.get('libzmq')}, {total('kvconn_managers')} managers")
    ready, connecting = (total("kvconn_connections", state=state) for state in ("READY", "CONNECTING"))
    print(f"connections  {ready} READY, {connecting} CONNECTING, {total('kvconn_connections_stalled')} of them stalled")
    ended = {has["status"]: int(v) for n, has, v in samples if n == "kvconn_connections_ended_total" and v}
    print(f"ended        {', '.join(f'{count} {status}' for status, count in ended.items()) or 'none'}")
    print(f"endpoints    {total('kvconn_endpoints_in_use')} in use, {total('kvconn_endpoints_fenced')} fenced")
    outcomes = "accepted", "acknowledged", "unacknowledged", "unknown"
    counts = [f"{total(f'kvconn_messages_{outcome}_total')} {outcome}" for outcome in outcomes]
    print(f"messages     {', '.join(counts)}, {total('kvconn_messages_in_flight')} in flight")
    print(f"senders      {total('kvconn_send_waiting')} wait now")
    nodes, requests = total("kvconn_nodes"), total("kvconn_requests_in_flight")
    print(f"nodes        {nodes} live with {requests} requests, {total('kvconn_nodes_failed_total')} failed")
    if limit := total("kvconn_descriptors_limit"):
        print(f"descriptors  {total('kvconn_descriptors_in_use')} of {limit}")
        print(f"bytes        {total('kvconn_queued_bytes_reserved')} of {total('kvconn_queued_bytes_limit')} reserved")
    for name, why in LOOK_AT.items():
        if total(name):
            print(f"look at      {name} {total(name)}: {why}")
    if not text.rstrip().endswith("# EOF"):
        print("kvconn: the text is cut: it does not end with # EOF", file=sys.stderr)
    return 0


def settings(description: str) -> dict[str, tuple[str, str]]:
    """{name: (value, source)} of the settings in a text of kvconn_describe."""
    lines = re.findall(r"^  settings (?:from the|from|at their) (\w+): (.*)$", description, re.M)
    pairs = [(source, pair.partition("=")) for source, line in lines for pair in line.split(" ")]
    return {name: (value, source) for source, (name, _, value) in pairs}


def of_process(pid: int, dump: bool) -> int:
    """Prints what can be seen of a process. Returns the exit code."""
    process = pathlib.Path(f"/proc/{pid}")
    if not process.exists():
        print(f"kvconn: there is no process {pid}", file=sys.stderr)
        return 1
    print(f"process      {pid}: {_read(process / 'cmdline').replace(chr(0), ' ').strip() or '(hidden)'}")
    maps = _read(process / "maps")
    libraries = sorted(set(re.findall(r"(/\S*libkvconn\S*)( \(deleted\))?$", maps, re.M)))
    threads = sorted(name for task in _each(process / "task") if (name := _read(task / "comm").strip()).startswith("kvconn-"))
    for path, deleted in libraries:
        print(f"library      {path}{', which was replaced on disk since' if deleted else ''}")
    print(f"threads      {', '.join(threads) or 'none of kvconn: it has not connected yet, or is not in use'}")
    variables = [text for text in _read(process / "environ").split("\0") if text.startswith("KVCONN_")]
    for name, _, value in (text.partition("=") for text in variables):
        print(f"environment  {name}={'(hidden)' if 'SECRET' in name else value}")
    if not maps:
        print("kvconn: this user may not look into the process: be root, or its user", file=sys.stderr)
    if not libraries and not threads:
        return 1
    if dump:
        return _dump(pid)
    print(f"for all connections, nodes and fences: kvconn status {pid} --dump (a debugger stops the process for a second or two)")
    return 0


def _read(path: pathlib.Path) -> str:
    """The text of a file of /proc, or "" if this user may not read it, or the process has ended."""
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _each(directory: pathlib.Path) -> list[pathlib.Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []


def gdb_is_safe(version: str, cpuinfo: str) -> bool:
    """Whether this gdb may call a function in a process of this machine.

    A gdb before version 14 cannot restore the registers of a processor with AMX (Intel Xeon since Sapphire Rapids). After
    the call a system call or a computation of the process fails.
    """
    first = version.partition("\n")[0]
    number = re.search(r" (\d+)\.\S*$", first)
    return "amx_tile" not in cpuinfo or (number is not None and int(number[1]) >= 14)


def _debugger(pid: int, path: str) -> list[str] | None:
    """A command that calls kvconn_dump in the process, into this new file there. None if there is no debugger for it."""
    # The C library's names with underscores: `open` and `close` may be others' functions, which such a call would crash.
    opened = f'((int(*)(const char*, int, int))__open)("{path}", {CREATE}, 0600)'
    dumped, closed = "((int(*)(int, void*))kvconn_dump)($fd, (void*)0)", "((int(*)(int))__close)($fd)"
    gdb, lldb = shutil.which("gdb"), shutil.which("lldb")
    if gdb is not None:
        said = subprocess.run([gdb, "--version"], capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
        if gdb_is_safe(said, _read(pathlib.Path("/proc/cpuinfo"))):
            calls = [
                "set language c",  # gdb takes that of the frame in which the process stands
                "set unwindonsignal on",
                f"set direct-call-timeout {CALL_SECONDS}",  # from gdb 14 on; an older one is interrupted
                "set unwind-on-timeout on",
                f"set $fd = {opened}",
                f"print {dumped}",
                f"print {closed}",
            ]
            command = [gdb, "-nx", "-iex", "set debuginfod enabled off", "-p", str(pid), "-batch"]
            return command + [word for call in calls for word in ("-ex", call)]
    if lldb is not None:
        # With full debug information, lldb knows the name only inside Rust's modules. So it gets the symbol.
        dumped = 'int dump(int, void*) __asm__("kvconn_dump"); dump($fd, (void*)0)'
        calls = [f"expression -l c -u true -t {CALL_SECONDS * 1_000_000} -- {call}" for call in (f"int $fd = {opened}", dumped, closed)]
        command = [lldb, "--no-lldbinit", "-p", str(pid), "--batch"]
        return command + [word for call in calls for word in ("-o", call)]
    if gdb is None:
        print("kvconn: gdb is not installed. docs/operations.md has the command for another machine", file=sys.stderr)
    else:
        print(
            "kvconn: gdb before version 14 cannot restore the registers of a process on this processor (AMX). "
            "Install gdb 14 or lldb",
            file=sys.stderr,
        )
    return None


def _run(command: list[str]) -> str:
    """Runs a debugger. Returns what it said of errors.

    A debugger that is killed within a call leaves the process in it for ever: the registers are lost. SIGINT lets it cancel
    the call first.
    """
    ran = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        return ran.communicate(timeout=DEBUGGER_SECONDS)[1]
    except BaseException:
        with contextlib.suppress(subprocess.TimeoutExpired):
            ran.send_signal(signal.SIGINT)
            ran.communicate(timeout=CALL_SECONDS)
        raise
    finally:
        ran.kill()
        ran.wait()


def _dump(pid: int) -> int:
    """Lets a debugger call kvconn_dump in the process, into a file there, and prints that file."""
    path = f"/tmp/kvconn-{secrets.token_hex(8)}.txt"
    command = _debugger(pid, path)
    if command is None:
        return 1
    name = pathlib.Path(command[0]).name
    said = ""
    there = pathlib.Path(f"/proc/{pid}/root{path}")  # the file system of the process, which may be a container's
    try:
        said = _run(command)
        text = there.read_text(encoding="utf-8", errors="replace")
        if not text or re.search(r"timed out|interrupted|signaled while", said, re.I):
            print(text)
            print(
                f"kvconn: the call of kvconn_dump has not returned within {CALL_SECONDS} s and was cancelled: the thread was "
                "perhaps inside malloc. The process goes on. Try again",
                file=sys.stderr,
            )
            return 1
    except subprocess.TimeoutExpired:
        print(f"kvconn: {name} has not ended within {DEBUGGER_SECONDS} s. Try again", file=sys.stderr)
        return 1
    except OSError:
        last = [line for line in said.splitlines() if line.strip()]
        print(f"kvconn: {name} could not do it: {last[-1] if last else 'no reason given'}", file=sys.stderr)
        return 1
    finally:
        with contextlib.suppress(OSError):
            there.unlink()
    print(text, end="")
    return 0
