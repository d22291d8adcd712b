"""The deep proofs: sanitizers, valgrind, models, long runs, hostile peers and networks. `make check-deep` runs this.

    check.py [--list] [STEP...]

Runs these steps, or all, one after the other; prints a line for each, a table and a verdict. A step that cannot run here
is skipped, with its reason. The output of each step is in target/deep/logs. The exit status is 0 if no step failed.

Instrumented builds are made in directories of their own and removed afterwards, unless KVCONN_DEEP_KEEP is set.
"""

import argparse
import glob
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import std_sources

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve()
DEEP = TARGET / "deep"
HERE = "tests/deep"
TRIPLE = os.uname().machine + "-unknown-linux-gnu"
CC, CXX = os.environ.get("CC") or "cc", os.environ.get("CXX") or "c++"
STEP_SECONDS = 1500  # a step that takes longer hangs
C_FLAGS = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-Iinclude", "-O1", "-g"]
C_PROGRAMS = ["nodes", "peer_lost", "structs", "arguments"]
# Tests whose time or memory means nothing under a sanitizer: words in their names.
NOT_UNDER_SANITIZERS = [
    "many", "liveness", "memory", "resident", "processor", "stress", "dlopen", "stack", "two_thousand", "everything_at_once",
    "pings", "bounds", "forking_a_busy", "a_burst", "closing_beside", "what_is_remembered", "sixty_four_mebibytes",
    "a_message_cut_by", "whose_pipe_dies", "soak", "patience", "released::", "long_messages", "stall_events",
    "is_fast", "a_thousand_signals", "of_256_mib", "giving_up_without_end",
]


class Skipped(Exception):
    """The reason why a step cannot run here."""


class Failed(Exception):
    """What went wrong."""


class Step:
    """One step while it runs: its log, and the commands that it starts."""

    def __init__(self, name, log):
        self.name = name
        self.log = log
        self.begun = time.monotonic()

    def run(self, *command, env=None, may_fail=False):
        """Runs a command to its end; its output and exit status."""
        self.log.write(f"$ {' '.join(map(str, command))}\n")
        self.log.flush()
        environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
        environment.update(env or {})
        start = self.log.tell()
        left = STEP_SECONDS - (time.monotonic() - self.begun)
        try:
            status = subprocess.run(
                list(map(str, command)), cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
                stdout=self.log, stderr=subprocess.STDOUT, timeout=max(left, 1),
            ).returncode
        except subprocess.TimeoutExpired:
            raise Failed(f"{command[0]} {command[1] if len(command) > 1 else ''} hangs: not over after {STEP_SECONDS} s") from None
        except FileNotFoundError:
            raise Skipped(f"{command[0]} is not installed") from None
        self.log.flush()
        with open(self.log.name, errors="replace") as text:
            text.seek(start)
            output = text.read()
        if status and not may_fail:
            raise Failed(f"{command[0]} ended with {status}; {first_complaint(output)}")
        return output, status


def first_complaint(output):
    for pattern in (
        r"WARNING: ThreadSanitizer: .*", r"==ERROR: .*Sanitizer: .*", r"SUMMARY: .*", r"^error.*", r"panicked at .*\n.*", r"FAIL .*",
        r"test .* FAILED", r"ERROR SUMMARY: .*",
    ):
        found = re.search(pattern, output, re.MULTILINE)
        if found:
            return found.group(0).replace("\n", ": ")[:200]
    return (output.strip().splitlines() or ["no output"])[-1][:200]


def tests_run(output):
    """What cargo test counted."""
    counts = re.findall(r"(\d+) passed; (\d+) failed", output)
    skipped = len(re.findall(r"^SKIPPED: ", output, re.MULTILINE))
    text = f"{sum(int(passed) for passed, _ in counts)} tests"
    return text + (f", {skipped // 2 or 1} of them skipped" if skipped else "")


def cargo(step, *arguments, env=None):
    return step.run("cargo", *arguments, env=env)


# ---- sanitizers ------------------------------------------------------------------------------------------------------


def compiler_with_sources(runtime):
    """A compiler that can compile its standard library too, and has this runtime of a sanitizer."""
    try:
        rustc = std_sources.compiler(DEEP / "rust", oldest_rust())
    except std_sources.Missing as reason:
        raise Skipped(f"no sources of Rust's standard library (rustup component add rust-src); {reason}") from None
    libraries = pathlib.Path(std_sources.output(rustc, "--print", "target-libdir").strip())
    if not glob.glob(f"{libraries}/librustc*_rt.tsan.a"):
        shutil.copy(runtime, libraries)
    return rustc


def oldest_rust():
    """The oldest version that the project builds with."""
    major, minor = re.search(r'^rust-version = "(\d+)\.(\d+)', (ROOT / "Cargo.toml").read_text(), re.MULTILINE).groups()
    return int(major), int(minor)


def sanitizer(name):
    """The environment of a build with a sanitizer. Stable Rust has them behind RUSTC_BOOTSTRAP."""
    sysroot = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True, check=True).stdout.strip()
    short = {"address": "asan", "thread": "tsan"}[name]
    runtime = glob.glob(f"{sysroot}/lib/rustlib/{TRIPLE}/lib/librustc*_rt.{short}.a")
    if not runtime:
        raise Skipped(f"this Rust has no runtime of the sanitizer for {TRIPLE}")
    rustc = "rustc"
    if name == "thread":
        rustc = compiler_with_sources(runtime[0])
    # libzmq is instrumented too. gcc must not name a variable of the runtime that only its own shared one can share.
    extra = " --param asan-use-after-return=0" if name == "address" and "clang" not in CXX else ""
    return {
        "RUSTC_BOOTSTRAP": "1",
        "RUSTC": rustc,
        "RUSTFLAGS": f"-Zsanitizer={name} -Cunsafe-allow-abi-mismatch=sanitizer",
        "CXXFLAGS": f"-fsanitize={name}{extra} -g1 -O1 -fno-omit-frame-pointer",
        "CARGO_TARGET_DIR": str(TARGET / short),
        "CARGO_PROFILE_DEV_DEBUG": "line-tables-only",
        "CARGO_PROFILE_DEV_PACKAGE_ZMQ_SYS_OPT_LEVEL": "1",
        "CARGO_INCREMENTAL": "0",
        # More cases find more wrong answers, for which there is the step `properties`, and no other memory error.
        "PROPTEST_CASES": "32",
        # How many times slower such a build is, for the tests that bound a time.
        "KVCONN_TEST_SLOWDOWN": {"address": "3", "thread": "8"}[name],
        "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0",
        "LSAN_OPTIONS": f"suppressions={ROOT / HERE / 'lsan.supp'}:print_suppressions=0",
        "TSAN_OPTIONS": f"die_after_fork=0:suppressions={ROOT / HERE / 'tsan.supp'}:halt_on_error=0:second_deadlock_stack=1:print_suppressions=0",
    }, runtime[0], pathlib.Path(TARGET / short)


def rust_under(step, name, crates):
    env, _, _ = sanitizer(name)
    skips = [word for test in NOT_UNDER_SANITIZERS for word in ("--skip", test)]
    chosen = [word for crate in crates for word in (("--lib",) if crate == "lib" else ("--test", crate))]
    # ThreadSanitizer must see the standard library's atomics, see std_sources.py.
    std = ["-Zbuild-std"] if name == "thread" else []
    output, _ = cargo(step, "test", *std, "--target", TRIPLE, "--no-fail-fast", *chosen, "--", "--test-threads", "2",
                      "-Zunstable-options", "--report-time", *skips, env=env)
    if name == "thread" and "WARNING: ThreadSanitizer" in output:
        raise Failed(first_complaint(output))
    return tests_run(output)


def asan(step):
    return rust_under(step, "address", ["lib", "messages", "nodes", "connections", "process", "deep"])


def tsan(step):
    return rust_under(step, "thread", ["lib", "messages", "nodes", "connections", "process", "deep"])


def asan_c(step):
    """The C programs with a library that was built with AddressSanitizer, and with the runtime that it needs."""
    env, runtime, target = sanitizer("address")
    cargo(step, "build", "--target", TRIPLE, "--lib", env=env)
    library = target / TRIPLE / "debug"
    link = library / "libkvconn.so.0"
    link.unlink(missing_ok=True)
    link.symlink_to("libkvconn.so")
    for program in C_PROGRAMS:
        path = library / program
        step.run(
            CC, *C_FLAGS, f"tests/c/{program}.c", "-o", path, "-Wl,--whole-archive", runtime, "-Wl,--no-whole-archive",
            "-rdynamic", f"-L{library}", "-lkvconn", f"-Wl,-rpath,{library}", "-pthread", "-ldl", "-lm", "-lrt",
        )
        step.run(path, env=env)
    return f"{len(C_PROGRAMS)} programs"


def valgrind(step):
    if not shutil.which("valgrind"):
        raise Skipped("valgrind is not installed")
    library = TARGET / "release"
    step.run("cargo", "build", "--release", "--lib")
    programs = [*C_PROGRAMS]
    DEEP.mkdir(parents=True, exist_ok=True)
    for program in programs:
        path = DEEP / f"{program}-plain"
        step.run(CC, *C_FLAGS, f"tests/c/{program}.c", "-o", path, f"-L{library}", "-lkvconn", f"-Wl,-rpath,{library}", "-pthread")
        step.run(
            "valgrind", "--error-exitcode=99", "--leak-check=full", "--show-leak-kinds=definite", "--errors-for-leak-kinds=definite",
            "--fair-sched=yes", "--quiet", f"--suppressions={HERE}/valgrind.supp", path,
        )
    return f"{len(programs)} programs"


# ---- models and long runs --------------------------------------------------------------------------------------------


def loom(step):
    output, _ = step.run("make", "loom")
    return tests_run(output)


def properties(step):
    cases = os.environ.get("PROPTEST_CASES") or "3000"
    output, _ = cargo(step, "test", "--lib", "--", "endpoint", "nodes::tests::model", "state", env={"PROPTEST_CASES": cases})
    return f"{tests_run(output)} of {cases} cases for each property"


def sweep(step):
    env = {"KVCONN_SWEEP": os.environ.get("KVCONN_SWEEP") or "full"}
    output, _ = cargo(step, "test", "--test", "faults", "--", "errno_sweep", "--nocapture", env=env)
    row = re.search(r"^\| all \|.*", output, re.MULTILINE)
    return row.group(0) if row else tests_run(output)


def fuzz(step):
    output, _ = step.run(sys.executable, "fuzz/run.py", os.environ.get("KVCONN_FUZZ_SECONDS") or "60")
    return (output.strip().splitlines() or [""])[-1]


def deny(step):
    version = subprocess.run(["cargo", "deny", "--version"], capture_output=True, text=True)
    if version.returncode:
        raise Skipped("cargo-deny is not installed (cargo install cargo-deny --locked)")
    if tuple(map(int, re.findall(r"\d+", version.stdout)[:2])) < (0, 16):
        raise Skipped(f"{version.stdout.strip()} is too old for deny.toml: 0.16 or later is needed")
    for manifest in ("Cargo.toml", "fuzz/Cargo.toml"):
        deny = ("deny", "--manifest-path", manifest, "--config", "deny.toml", "check")
        cargo(step, *deny, "bans", "licenses", "sources")
        output, status = step.run("cargo", *deny, "advisories", may_fail=True)
        if status and not re.search(r"failed to fetch advisory database", output):
            raise Failed(first_complaint(output))
    if status:
        return "licences, sources and bans; the advisories were not checked: their database cannot be fetched"
    return "licences, sources, bans and advisories"


def long_test(step, name, seconds):
    output, _ = cargo(step, "test", "--test", "deep", "--", "--nocapture", "--test-threads", "1", name,
                      env={"KVCONN_SOAK_SECONDS": str(seconds)})
    lines = re.findall(r"^SKIPPED: .*", output, re.MULTILINE)
    if lines and len(lines) // 2 >= len(re.findall(r"^test .* ok$", output, re.MULTILINE)):
        raise Skipped(lines[0].removeprefix("SKIPPED: "))
    return tests_run(output)


def hostile(step):
    return long_test(step, "hostile::", 60)


def chaos(step):
    return long_test(step, "chaos::", 20)


def stress(step):
    output, _ = cargo(step, "test", "--", "--include-ignored", "stress", "soak", "--skip", "hostile", "--skip", "chaos",
                      env={"KVCONN_SOAK_SECONDS": "15"})
    return tests_run(output)


def soak(step):
    minutes = os.environ.get("MINUTES") or "3"
    output, _ = step.run("make", "soak", f"MINUTES={minutes}")
    row = re.search(r"^accounting +good +(.*)", output, re.MULTILINE)
    return row.group(1) if row else ""


STEPS = {
    "deny": (deny, "licences, sources and advisories of the crates"),
    "loom": (loom, "the models of the gate and of the memory pool, every interleaving"),
    "properties": (properties, "the property tests, with many cases"),
    "fuzz": (fuzz, "every parser of foreign bytes, guided by coverage"),
    "hostile": (hostile, "peers that send what no libzmq sends"),
    "chaos": (chaos, "loss, delay, repetition, another order, forged resets, MTU, takeover, NAT"),
    "valgrind": (valgrind, "memory errors and leaks of the C programs"),
    "asan": (asan, "AddressSanitizer and LeakSanitizer: Rust tests, libzmq instrumented"),
    "asan-c": (asan_c, "the same: C programs"),
    "tsan": (tsan, "ThreadSanitizer: Rust tests, libzmq instrumented"),
    "sweep": (sweep, "every system call fails, at each place, with each errno"),
    "stress": (stress, "the tests with stress or soak in their name, 15 s each"),
    "soak": (soak, "ranks are killed, stopped and restarted under load"),
}
# What is removed after the last of its steps, for its size.
SHARED_BUILDS = {"asan": ("asan", "asan-c"), "tsan": ("tsan",), "deep/rust": ("tsan",)}


def remove_builds(left):
    if os.environ.get("KVCONN_DEEP_KEEP"):
        return
    for folder, users in SHARED_BUILDS.items():
        if not any(user in left for user in users):
            shutil.rmtree(TARGET / folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="only list the steps")
    parser.add_argument("steps", nargs="*", metavar="STEP")
    options = parser.parse_args()
    if options.list:
        for name, (_, what) in STEPS.items():
            print(f"{name:12} {what}")
        return 0
    unknown = [name for name in options.steps if name not in STEPS]
    if unknown:
        parser.error(f"no step {unknown[0]}; there are {', '.join(STEPS)}")
    names = options.steps or list(STEPS)
    (DEEP / "logs").mkdir(parents=True, exist_ok=True)
    rows = []
    for place, name in enumerate(names):
        run, what = STEPS[name]
        print(f"{name}: {what} …", flush=True)
        with open(DEEP / "logs" / f"{name}.log", "w+") as log:
            step = Step(name, log)
            try:
                verdict, text = "passed", run(step)
            except Skipped as reason:
                verdict, text = "SKIPPED", str(reason)
            except Failed as fault:
                verdict, text = "FAILED", str(fault)
            took = time.monotonic() - step.begun
        print(f"{name}: {verdict} in {took:.0f} s: {text}", flush=True)
        rows.append((name, verdict, took, text))
        remove_builds(names[place + 1 :])
    print(f"\n{'step':12} {'verdict':8} {'s':>5}  what was seen")
    for name, verdict, took, text in rows:
        print(f"{name:12} {verdict:8} {took:5.0f}  {text}")
    failed = [name for name, verdict, *_ in rows if verdict == "FAILED"]
    skipped = [name for name, verdict, *_ in rows if verdict == "SKIPPED"]
    total = sum(took for _, _, took, _ in rows) / 60
    text = f"FAILED: {', '.join(failed)}; the output is in {DEEP / 'logs'}" if failed else "nothing was found"
    print(f"\ncheck-deep: {text}; {len(rows) - len(failed) - len(skipped)} steps passed, {len(skipped)} skipped; {total:.0f} minutes")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
