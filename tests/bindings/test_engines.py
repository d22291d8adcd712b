"""The program of each runtime in bindings/: it sends, and sees its peer die."""

import pathlib
import re
import socket
import subprocess

from runtimes import BUILDERS, ROOT, SECONDS, run

THE_THREE = [[b"room", b"", b"1"], [b"room", b"", b"2"], [b"room", b"", b"3"]]


def test_the_engine_sends_and_sees_its_peer_killed(engine, peer):
    command, environment = engine
    with subprocess.Popen(
        [*command, peer.endpoint], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            lines = [process.stdout.readline() for _ in range(4)]
            assert lines[1:] == ["accepted 1\n", "accepted 2\n", "accepted 3\n"], lines + [process.stderr.read()]
            connection = int(re.fullmatch(r"connection (\d+)\n", lines[0])[1])
            peer.wait_for(3, SECONDS)
            assert process.poll() is None, "it waits for the end of the connection"
            peer.die()
            out, errors = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
    assert (process.returncode, errors) == (0, "")
    # More than 2^53 in nearly every run: an id that went through a double would differ here.
    assert out == f"KVCONN_PEER_LOST: connection {connection}, 3 accepted, 3 acknowledged\n"
    assert peer.messages() == THE_THREE


def test_the_engine_says_why_it_cannot_connect(engine):
    command, environment = engine
    with socket.socket() as bound:  # nobody listens there
        bound.bind(("127.0.0.1", 0))
        endpoint = f"tcp://127.0.0.1:{bound.getsockname()[1]}"
        result = run(*command, endpoint, env=environment)
    assert (result.returncode, result.stdout) == (1, "")
    assert re.fullmatch(rf"{endpoint}: .*refused.* \(KVCONN_CONNECT_FAILED\)\n", result.stderr), result.stderr


def test_every_program_in_bindings_is_tested_and_documented():
    directories = {path.name for path in pathlib.Path(ROOT / "bindings").iterdir() if path.is_dir()}
    assert directories == set(BUILDERS)
    text = (ROOT / "docs" / "bindings.md").read_text(encoding="utf-8")
    assert directories == set(re.findall(r"\(\.\./bindings/(\w+)/", text))
