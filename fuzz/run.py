"""Builds the fuzz targets with coverage and AddressSanitizer, and runs each for some seconds.

    run.py [SECONDS] [TARGET...]

It needs stable Rust and a C++ compiler: libFuzzer is in the crate libfuzzer-sys, and coverage is a pass of the compiler.
What a target has found is kept under target/fuzz/corpus, a crash under target/fuzz/crashes.
"""

import glob
import os
import pathlib
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parents[1]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve() / "fuzz"
TARGETS = ["endpoint", "options", "environment", "texts", "packed", "monitor"]
TRIPLE = os.uname().machine + "-unknown-linux-gnu"
COVERAGE = "-Cpasses=sancov-module " + " ".join(
    f"-Cllvm-args=-sanitizer-coverage-{word}" for word in ("level=4", "inline-8bit-counters", "pc-table", "trace-compares")
)
# What a random walk would not find soon.
SEEDS = {
    "endpoint": [
        b"tcp://127.0.0.1:5557", b"tcp://[fe80::1%lo]:1", b"tcp://[::ffff:10.0.0.1]:65535", b"ipc:///tmp/x", b"tcp://a.b-c.test:5557",
        b"TCP://LOCALHOST:05557", b"ipc://@x", b"tcp://[::1%1]:00001",
    ],
    "options": [bytes([place]) + value for place in range(60) for value in (b"1", b"on", b"10.0.0.1", b"lo", b"x" * 40)],
    "environment": [b"\n".join([b"1"] * 40), b"\n".join([b"off"] * 40), b"\n".join([b""] * 20 + [b"999999999999999999999"])],
    "texts": [b"node\0tcp://127.0.0.1:1\0reason\0send_hwm\0007\0", "ä\0ipc:///x\0\xff\0".encode(), b"a" * 300 + b"\0tcp://h:1\0" + b"r" * 300],
    "packed": [bytes([2] + [0, 0] * 10), bytes([8] + list(range(200))), bytes([1, 0, 0, 0, 4] + [1, 44] * 130)],
    # A dial that succeeds and ends; one that fails on both addresses; more events than there is room for.
    "monitor": [
        bytes([4, 0, 0, 4, 1, 9, 4, 8, 0, 0, 4, 5, 32, 4, 6, 0]), bytes([12, 1, 9, 12, 7, 32, 0, 12, 3, 111, 0]),
        bytes([5, 1, 3, 13, 8, 0] * 10 + [1, 5, 5, 104, 5, 3, 0, 5, 6, 0]), bytes([2] + [255] * 8 + [7, 3, 11] + [255] * 8 + [0]),
        bytes([3, 1] + [255] * 8 + [0]),
    ],
}


def build():
    env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    env.update(
        RUSTC_BOOTSTRAP="1",
        RUSTFLAGS=f"--cfg fuzzing -Zsanitizer=address -Cunsafe-allow-abi-mismatch=sanitizer {COVERAGE}",
        CARGO_TARGET_DIR=str(TARGET),
        CARGO_INCREMENTAL="0",
    )
    command = ["cargo", "build", "--manifest-path", "fuzz/Cargo.toml", "--target", TRIPLE]
    subprocess.run(command, cwd=ROOT, env=env, check=True)
    return TARGET / TRIPLE / "debug" / "parsers"


def run(program, target, seconds):
    corpus, seeds, crashes = (TARGET / folder / target for folder in ("corpus", "seeds", "crashes"))
    for folder in (corpus, seeds, crashes):
        folder.mkdir(parents=True, exist_ok=True)
    for place, seed in enumerate(SEEDS[target]):
        (seeds / str(place)).write_bytes(seed)
    env = dict(os.environ, KVCONN_FUZZ_TARGET=target, ASAN_OPTIONS="detect_leaks=0")
    command = [
        program, f"-max_total_time={seconds}", "-timeout=10", "-rss_limit_mb=2048", "-max_len=2000", "-print_final_stats=1",
        f"-artifact_prefix={crashes}/", corpus, seeds,
    ]
    done = subprocess.run(command, cwd=TARGET, env=env, capture_output=True, text=True, errors="replace")
    runs = re.search(r"stat::number_of_executed_units: (\d+)", done.stderr)
    covered = re.findall(r"cov: (\d+)", done.stderr)
    print(f"{target}: {runs.group(1) if runs else '?'} inputs, {covered[-1] if covered else '?'} places covered, status {done.returncode}")
    if done.returncode:
        print(done.stderr[-4000:])
    return done.returncode, int(runs.group(1)) if runs else 0


def main():
    seconds, targets = int(sys.argv[1]) if len(sys.argv) > 1 else 60, sys.argv[2:] or TARGETS
    program = build()
    # Each uses one processor.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = dict(zip(targets, pool.map(lambda target: run(program, target, seconds), targets)))
    failed = [target for target, (status, _) in results.items() if status]
    if failed:
        print(f"fuzz: FAULT in {', '.join(failed)}: {[*glob.glob(str(TARGET / 'crashes' / '*' / '*'))]}")
        return 1
    print(f"{len(targets)} targets, {sum(runs for _, runs in results.values()):,} inputs, no fault")
    return 0


if __name__ == "__main__":
    sys.exit(main())
