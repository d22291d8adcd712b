"""`python -m kvconn`: probe against every kind of endpoint, status of files and processes, options."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap

import pytest
import zmq

from conftest import ROOT, Process, wait_until_true
from sharing import canonical, kv, manager  # noqa: F401: fixtures are found by name

SECONDS = 120  # for a loaded machine
STEP = 1.0  # the timeout of a step, where the test waits for it


def command(*arguments, prefix=(), text=None, **environment):
    """What `python -m kvconn ARGUMENTS` did."""
    words = [*prefix, sys.executable, "-m", "kvconn", *map(str, arguments)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("KVCONN_") or name == "KVCONN_LIB"}
    environment = clean | {"PYTHONPATH": str(ROOT / "python")} | environment
    return subprocess.run(words, input=text, capture_output=True, text=True, timeout=SECONDS, env=environment)


@pytest.fixture
def probe(lib):
    """Runs the probe in both forms. Returns the JSON object after checks of what all of them share."""

    def run(endpoint, *arguments, timeout=20, **environment):
        words = "probe", endpoint, "--timeout", timeout, *arguments
        ran = command(*words, "--json", **environment)
        assert ran.stderr == "", ran.stderr
        found = json.loads(ran.stdout)
        assert ran.returncode == found["exit_code"]
        assert all(step["ms"] >= 0 for step in found["steps"])
        return found

    return run


@pytest.fixture
def start():
    """Starts a ZeroMQ socket of a type."""
    started = []

    def begin(*arguments):
        started.append(Process("socket_of_type.py", *arguments))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.close_pipes()


def steps(found):
    """{name of a step: whether it succeeded}."""
    return {step["step"]: step["ok"] for step in found["steps"]}


def keys():
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


# ---- The kinds of endpoints ------------------------------------------------------------------------------------------


def test_a_live_peer_gets_no_message(probe, peer):
    receiver = peer()
    found = probe(canonical(receiver))
    assert (found["verdict"], found["exit_code"], found["status"]) == ("live", 0, "KVCONN_OK")
    assert steps(found) == {"resolve": True, "dial": True, "handshake": True}
    assert receiver.report()["messages"] == 0


def test_a_name_with_several_addresses_is_live(probe, peer):
    found = probe(f"tcp://localhost:{peer().port}")
    assert found["verdict"] == "live" and "127.0.0.1" in found["steps"][0]["text"]


def test_nothing_listens(probe, wrong_peer):
    found = probe(wrong_peer("refuse").endpoint)
    assert (found["verdict"], found["exit_code"]) == ("refused", 4)
    assert steps(found) == {"resolve": True, "dial": False, "kvconn": False}
    assert found["status"] == "KVCONN_CONNECT_FAILED" and "Connection refused" in found["message"]


def test_packets_are_dropped(lib):
    """A network namespace whose only neighbour never answers."""
    network = "ip link set lo up; ip link add kva type veth peer name kvb; ip addr add 10.213.255.1/24 dev kva; ip link set kva up; "
    network += "ip link set kvb up; ip neigh add 10.213.255.2 lladdr 02:00:00:00:00:02 dev kva; "
    if not shutil.which("unshare") or not shutil.which("ip"):
        pytest.skip("needs unshare and iproute2")
    tried = subprocess.run(["unshare", "--net", "sh", "-ec", network], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"cannot make a network namespace; run as root: {tried.stderr.strip()}")
    inside = "unshare", "--net", "sh", "-ec", network + 'exec "$@"', "sh"
    ran = command("probe", "tcp://10.213.255.2:5557", "--timeout", STEP, "--json", prefix=inside)
    found = json.loads(ran.stdout)
    assert (found["verdict"], ran.returncode) == ("filtered", 5), ran.stdout
    assert steps(found) == {"resolve": True, "dial": False, "kvconn": False}
    assert found["steps"][1]["ms"] >= STEP * 1000 - 50 and "no answer" in found["steps"][1]["text"]


def test_an_http_server(probe, wrong_peer, lib):
    script = "import http.server as h; s = h.HTTPServer(('127.0.0.1', 0), h.SimpleHTTPRequestHandler); print(s.server_port, flush=True); s.serve_forever()"
    server = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        found = probe(f"tcp://127.0.0.1:{int(server.stdout.readline())}", timeout=3)
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
    # It waits for a line, so kvconn hears nothing; the look asks for a page.
    assert (found["verdict"], found["exit_code"]) == ("not ZeroMQ", 7), found
    assert "an HTTP server: HTTP/1.0 200" in found["text"]
    # One that speaks at once.
    found = probe(wrong_peer("http").endpoint)
    assert found["verdict"] == "not ZeroMQ" and "an HTTP server: HTTP/1.1 400" in found["text"]
    found = probe(wrong_peer("ssh").endpoint)
    assert found["verdict"] == "not ZeroMQ" and "an SSH server" in found["text"]


def test_a_mute_listener_and_a_stopped_peer(probe, wrong_peer, peer):
    found = probe(wrong_peer("mute").endpoint, timeout=STEP)
    assert (found["verdict"], found["exit_code"]) == ("mute", 10)
    assert steps(found) == {"resolve": True, "dial": True, "handshake": False, "look": False}
    stopped = peer()
    stopped.stop()
    assert probe(canonical(stopped), timeout=STEP)["verdict"] == "mute"


@pytest.mark.parametrize("mode", ["close", "reset"])
def test_a_listener_that_closes(probe, wrong_peer, mode):
    found = probe(wrong_peer(mode).endpoint)
    assert (found["verdict"], found["exit_code"]) == ("closed", 9), found


@pytest.mark.parametrize("kind", ["REP", "PUSH", "SUB", "ROUTER", "DEALER", "PAIR"])
def test_a_socket_of_another_type_is_named(probe, start, kind):
    found = probe(start(kind).endpoint)
    assert (found["verdict"], found["exit_code"]) == ("wrong type", 8), found
    assert f"a ZeroMQ {kind} socket" in found["text"]


def test_curve_with_the_right_a_wrong_and_no_key(probe, start):
    server, other = keys(), keys()
    endpoint = start("PULL", f"--curve-secret={server[1]}").endpoint
    found = probe(endpoint, f"--server-key={server[0]}")
    assert found["verdict"] == "live" and "CURVE" in found["steps"][-1]["text"]
    found = probe(endpoint, f"--server-key={other[0]}")
    assert (found["verdict"], found["exit_code"]) == ("wrong key", 12), found
    found = probe(endpoint)
    assert (found["verdict"], found["exit_code"]) == ("no key", 11), found
    client = keys()
    own = {"KVCONN_CURVE_PUBLIC_KEY": client[0], "KVCONN_CURVE_SECRET_KEY": client[1]}
    found = probe(endpoint, KVCONN_CURVE_SERVER_KEY=server[0], **own)
    assert found["verdict"] == "live" and "CURVE" in found["steps"][-1]["text"]


def test_a_key_for_a_peer_without_curve(probe, peer):
    found = probe(canonical(peer()), f"--server-key={keys()[0]}")
    assert (found["verdict"], found["exit_code"]) == ("not encrypted", 13), found


def test_a_peer_that_does_not_know_this_client(probe, start):
    server = keys()
    found = probe(start("PULL", f"--curve-secret={server[1]}", "--refuse-clients").endpoint, f"--server-key={server[0]}")
    assert (found["verdict"], found["exit_code"]) == ("client refused", 14), found


def test_a_name_without_an_address(probe):
    found = probe("tcp://no-such-host.invalid:5557")
    assert (found["verdict"], found["exit_code"]) == ("unresolved", 3), found


def test_ipc(probe, tmp_path):
    with zmq.Context() as context, context.socket(zmq.PULL) as receiver:
        receiver.bind(f"ipc://{tmp_path}/rank")
        assert probe(f"ipc://{tmp_path}/rank")["verdict"] == "live"
    found = probe(f"ipc://{tmp_path}/nobody")
    assert found["verdict"] == "refused", found


def test_the_text_has_a_line_for_each_step_and_the_verdict(lib, peer):
    ran = command("probe", canonical(peer()), "--timeout", 20)
    assert re.fullmatch(
        r"resolve +\d+\.\d ms  127\.0\.0\.1\n"
        r"dial +\d+\.\d ms  127\.0\.0\.1:\d+: connected\n"
        r"handshake +\d+\.\d ms  READY, not encrypted\n"
        r"live: a PULL socket that takes this connection\n",
        ran.stdout,
    ), ran.stdout


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["tcp://127.0.0.1"], ["tcp://127.0.0.1:1", "--server-key", "short"], ["tcp://x:1", "--timeout", "0"], []]
)
def test_a_wrong_argument_is_exit_code_2(lib, arguments):
    ran = command("probe", *arguments)
    assert ran.returncode == 2 and ran.stderr and "Traceback" not in ran.stderr, ran.stderr


def test_ctrl_c_ends_a_probe(lib, wrong_peer):
    mute = wrong_peer("mute")
    words = [sys.executable, "-m", "kvconn", "probe", mute.endpoint, "--timeout", "60"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    ran = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    wait_until_true("kvconn shakes hands", lambda: mute.connections == 2, SECONDS)  # the first is the dial's
    ran.send_signal(signal.SIGINT)
    output = ran.communicate(timeout=SECONDS)
    assert (ran.returncode, *output) == (130, "", "")


def test_fresh_keys_are_curve_keys(kv):
    from kvconn import _keys

    for _ in range(20):
        public, secret = _keys.pair()
        assert zmq.curve_public(secret.encode()).decode() == public


# ---- status ----------------------------------------------------------------------------------------------------------


def test_the_status_of_a_file_of_metrics(kv, manager, peer, tmp_path, wait_until):
    receiver = peer()
    conn = kv.connect(receiver.endpoint, wait_ms=20_000, manager=manager)
    for _ in range(3):
        kv.send(conn, [b"x"])
    kv.flush(conn, timeout_ms=20_000)
    node, _ = kv.node_open("prefill-0", manager=manager)
    kv.node_track_request(node, 17)
    text, whole = kv.metrics_text(manager), tmp_path / "metrics"
    whole.write_text(text)
    ran = command("status", whole)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "connections  1 READY, 0 CONNECTING, 0 of them stalled\n" in ran.stdout
    assert "messages     3 accepted, 3 acknowledged, 0 unacknowledged, 0 unknown, 0 in flight\n" in ran.stdout
    assert "nodes        1 live with 1 requests, 0 failed\n" in ran.stdout and "look at" not in ran.stdout
    receiver.stop()
    kv.send(conn, [b"x" * 4_000_000])
    kv.disconnect(conn)
    ran = command("status", "-", text=kv.metrics_text(manager))
    assert "look at      kvconn_messages_unacknowledged_total 1: " in ran.stdout and "1 DISCONNECTED" in ran.stdout
    ran = command("status", "-", text=text[: len(text) - 100])
    assert ran.returncode == 0 and "is cut" in ran.stderr
    ran = command("status", "-", text="http_requests_total 7\n")
    assert ran.returncode == 1 and "no metrics of kvconn" in ran.stderr
    assert command("status", tmp_path / "none").returncode == 2


def test_status_knows_only_metrics_that_exist(kv):
    source = (ROOT / "python" / "kvconn" / "_status.py").read_text()
    names = set(re.findall(r'"(kvconn_\w+)"', source)) - {"kvconn_info", "kvconn_dump"}
    written = {line.split(" ")[0].split("{")[0] for line in kv.metrics_text().splitlines() if line[0] != "#"}
    assert len(names) > 10 and names <= written, names - written


@pytest.fixture
def engine(peer, lib):
    """A process with one connection, and the canonical endpoint of its peer."""
    endpoint = canonical(peer())
    script = f"""
        import sys, kvconn
        kvconn.connect({endpoint!r}, wait_ms=20000)
        print("ready", flush=True)
        sys.stdin.read()
    """
    words = [sys.executable, "-c", textwrap.dedent(script)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "KVCONN_STALL_MS": "321"}
    environment |= {"KVCONN_CURVE_SECRET_KEY": ""}
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout.readline() == "ready\n"
    yield process, endpoint
    process.stdin.close()
    process.wait(SECONDS)
    process.stdout.close()


def test_the_status_of_a_process(engine):
    process, _ = engine
    ran = command("status", process.pid)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
    assert re.search(r"^library +/.*libkvconn", ran.stdout, re.M) and "kvconn-watcher" in ran.stdout
    assert "KVCONN_STALL_MS=321" in ran.stdout and "KVCONN_CURVE_SECRET_KEY=(hidden)" in ran.stdout
    assert f"status {process.pid} --dump" in ran.stdout
    other = subprocess.Popen(["sleep", "1000"])
    ran = command("status", other.pid)
    other.kill()
    other.wait()
    assert ran.returncode == 1 and "none of kvconn" in ran.stdout
    ran = command("status", 2**22 + 1)  # beyond the largest process id
    assert ran.returncode == 1 and "there is no process" in ran.stderr


def test_a_dump_of_a_process(engine):
    process, endpoint = engine
    ran = command("status", process.pid, "--dump")
    assert process.poll() is None
    for reason in ("gdb is not installed", "Install gdb 14 or lldb", "not permitted"):
        if ran.returncode and reason in ran.stderr:
            pytest.skip(ran.stderr.strip())
    assert ran.returncode == 0, ran.stderr
    assert endpoint in ran.stdout and "READY for" in ran.stdout, ran.stdout


def test_a_dump_by_lldb(engine, tmp_path):
    if not (lldb := shutil.which("lldb")):
        pytest.skip("lldb is not installed")
    process, endpoint = engine
    (tmp_path / "lldb").symlink_to(lldb)
    ran = command("status", process.pid, "--dump", PATH=str(tmp_path))
    assert process.poll() is None
    if ran.returncode and "not permitted" in ran.stderr:
        pytest.skip(ran.stderr.strip())
    assert ran.returncode == 0, ran.stderr
    assert endpoint in ran.stdout and "READY for" in ran.stdout, ran.stdout


# Its thread is in malloc most of the time, and holds the lock of it: there is a second thread.
IN_MALLOC = """
import ctypes, threading, kvconn
kvconn.Manager()
threading.Thread(target=threading.Event().wait, daemon=True).start()
trim = ctypes.CDLL(None).malloc_trim
print("ready", flush=True)
while True:
    for _ in range(2000):
        trim(0)
    print(".", flush=True)
"""


def test_a_dump_of_a_process_within_malloc_leaves_it_running(tmp_path):
    """The call waits for a lock that its own thread holds. It is cancelled, and the process goes on."""
    if not (lldb := shutil.which("lldb")):
        pytest.skip("lldb is not installed")  # gdb before version 14 has no limit of time
    (tmp_path / "lldb").symlink_to(lldb)
    log = tmp_path / "log"
    path = os.environ | {"PYTHONPATH": str(ROOT / "python")}
    with log.open("w") as out, subprocess.Popen([sys.executable, "-c", IN_MALLOC], stdout=out, env=path) as process:
        try:
            wait_until_true("it runs", lambda: log.stat().st_size > 10)
            for _ in range(2):
                ran = command("status", process.pid, "--dump", PATH=str(tmp_path))
                if ran.returncode and "not permitted" in ran.stderr:
                    pytest.skip(ran.stderr.strip())
                assert ran.returncode == 0 or "Try again" in ran.stderr, ran.stderr
                before = log.stat().st_size
                wait_until_true("it goes on", lambda before=before: log.stat().st_size > before)
                assert process.poll() is None
        finally:
            process.kill()


def test_an_old_gdb_calls_nothing_on_a_processor_with_amx():
    """The process's registers would not be restored: an engine's `read` returned ERESTARTSYS after the call."""
    from kvconn._status import gdb_is_safe

    old = ["GNU gdb (Debian 13.1-3) 13.1", "GNU gdb (Ubuntu 12.1-0ubuntu1~22.04) 12.1", "GNU gdb (GDB) Red Hat Enterprise Linux 10.2-13.el9"]
    new = ["GNU gdb (Debian 16.3-1) 16.3", "GNU gdb (Ubuntu 15.0.50.20240403-0ubuntu1) 15.0.50.20240403-git", "GNU gdb (GDB) 14.1"]
    amx, other = "flags\t\t: fpu avx512f amx_bf16 amx_tile amx_int8", "flags\t\t: fpu avx512f"
    for version in old:
        assert not gdb_is_safe(f"{version}\nCopyright (C) 2023", amx) and gdb_is_safe(version, other), version
    for version in new:
        assert gdb_is_safe(f"{version}\nCopyright (C) 2024", amx) and gdb_is_safe(version, other), version
    assert not gdb_is_safe("", amx)


# ---- options ---------------------------------------------------------------------------------------------------------


def test_options_are_those_of_the_loaded_library(kv):
    ran = command("options")
    assert (ran.returncode, ran.stderr) == (0, "")
    listed = re.findall(r"^(\w+)  \[(\w+)\]\n    values: (.*); default: (.*)$", ran.stdout, re.M)
    from kvconn import _status

    here = _status.settings(kv.describe())
    # A setting of one call has no value here.
    assert {name for name, reach, *_ in listed if reach != "call"} == set(here)
    defaults = {name: value for name, (value, source) in here.items() if source == "defaults"}
    assert len(defaults) > 20
    for name, _, _, default in listed:
        assert default == defaults.get(name, default), name


def test_options_show_what_this_environment_sets():
    ran = command("options", "stall", KVCONN_STALL_MS="77")
    assert ran.stdout.startswith("stall_ms  [connection]\n") and "default: 1000; here: 77 (from the environment)" in ran.stdout
    ran = command("options", KVCONN_STALL_MS="soon")
    assert ran.returncode == 2 and "KVCONN_STALL_MS" in ran.stderr
    ran = command("options", "no_such_option")
    assert ran.returncode == 1 and "no_such_option" in ran.stderr


# ---- The page --------------------------------------------------------------------------------------------------------


def test_the_page_lists_every_verdict_with_its_exit_code(kv):
    from kvconn import _probe

    page = (ROOT / "docs" / "operations.md").read_text()
    rows = {verdict: int(code) for code, verdict in re.findall(r"^\| (\d+) \| ([\w ]+) \|", page, re.M)}
    assert rows == {verdict: code for verdict, (code, _) in _probe.VERDICTS.items()}
    assert len(set(rows.values())) == len(rows) and 2 not in rows.values()
