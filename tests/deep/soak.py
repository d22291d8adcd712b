"""A soak run: kills, stops and restarts ranks at random under load, and compares what the library said with what came.

    soak.py PROGRAM MINUTES [--seed N] [--ranks N] [--senders N]

PROGRAM is the engine (soak.c), a C program that has nothing but kvconn.h. The ranks are pyzmq PULL sockets in processes
of their own. Prints a table and a verdict; the exit status is 0 if the verdict is good.
"""

import argparse
import collections
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from soak_rank import RECORD  # noqa: E402

FIN, LOCAL = 1, 4
START_SECONDS = 30
END_SECONDS = 180
# What is allowed beyond the level that the first half of the run reached.
DESCRIPTORS_MORE = 64
MEMORY_MORE = 16 << 20


class Ranks:
    """The ranks' processes. Each life of a rank has a file of its own."""

    def __init__(self, count, folder):
        self.folder = folder
        self.endpoints = [None] * count
        self.processes = [None] * count
        self.files = []
        self.drained = set()  # files of ranks that have read everything before they left
        self.current = [None] * count
        for place in range(count):
            self.start(place)

    def start(self, place):
        path = os.path.join(self.folder, f"{place}-{len(self.files)}")
        program = [sys.executable, str(HERE / "soak_rank.py"), self.endpoints[place] or "tcp://127.0.0.1:*", str(place), path]
        process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
        endpoint = process.stdout.readline().strip().removeprefix("bound ")
        if not endpoint:
            raise SystemExit(f"rank {place} did not start")
        self.endpoints[place] = endpoint
        self.processes[place] = process
        self.files.append(path)
        self.current[place] = path

    def signal(self, place, number):
        self.processes[place].send_signal(number)

    def kill(self, place):
        self.signal(place, signal.SIGKILL)
        self.processes[place].wait()

    def drain(self, place):
        """Leaves in order: false if it did not manage in time, because others need the processor."""
        self.signal(place, signal.SIGTERM)
        try:
            if self.processes[place].wait(60) == 0:
                self.drained.add(self.current[place])
        except subprocess.TimeoutExpired:
            self.kill(place)

    def wait_until_quiet(self):
        """Waits until nothing has arrived for a second."""
        arrived, since, end = -1, time.monotonic(), time.monotonic() + END_SECONDS
        while time.monotonic() < min(since + 1, end):
            now = sum(count for _, _, count, _, _ in self.records())
            if now != arrived:
                arrived, since = now, time.monotonic()
            time.sleep(0.05)

    def records(self):
        """(file, connection, arrived, wrong, foreign) of all lives."""
        for path in self.files:
            content = pathlib.Path(path).read_bytes()
            for conn, arrived, *_, wrong, foreign in RECORD.iter_unpack(content):
                if arrived:
                    yield path, conn, arrived, wrong, foreign


class Engine:
    """The engine's process and what it has said."""

    def __init__(self, program, senders, endpoints):
        with open(program + ".txt", "w") as description:
            self.process = subprocess.Popen(
                [program, str(senders), *endpoints],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=description, text=True, bufsize=1,
            )
        self.lines = []
        self.samples = []  # (seconds, descriptors, resident bytes, threads)
        self.said = {word: threading.Event() for word in ("stopped", "finished")}
        threading.Thread(target=self.read, daemon=True).start()
        self.begun = time.monotonic()

    def read(self):
        for line in self.process.stdout:
            words = line.split()
            if words and words[0] in self.said:
                self.said[words[0]].set()
            self.lines.append(words)

    def tell(self, command):
        try:
            self.process.stdin.write(command + "\n")
        except OSError as error:
            raise SystemExit(f"the engine is gone ({error}): {self.process.poll()}") from error

    def tell_and_wait(self, command, word):
        self.tell(command)
        if not self.said[word].wait(END_SECONDS):
            raise SystemExit(f"the engine hangs: it did not say {word!r} within {END_SECONDS} s after {command!r}")

    def sample(self):
        proc = f"/proc/{self.process.pid}"
        resident = int(pathlib.Path(proc, "statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
        threads = len(os.listdir(proc + "/task"))
        self.samples.append((time.monotonic() - self.begun, len(os.listdir(proc + "/fd")), resident, threads))


def disturb(ranks, engine, seconds, chance):
    """Does one thing after the other to ranks and connections until the time is over; how often it did what."""
    counts = collections.Counter()
    busy = set()
    threads = []

    def later(place, wait, action):
        def run():
            time.sleep(wait)
            action(place)
            busy.discard(place)

        busy.add(place)
        threads.append(threading.Thread(target=run))
        threads[-1].start()

    end, next_sample = time.monotonic() + seconds, 0.0
    while time.monotonic() < end:
        if time.monotonic() >= next_sample:
            engine.sample()
            next_sample = time.monotonic() + 0.5
        time.sleep(chance.uniform(0.05, 0.4))
        free = [place for place in range(len(ranks.endpoints)) if place not in busy]
        if not free:
            continue
        place = chance.choice(free)
        what = chance.choices(["kill", "stop", "leave", "fail", "disconnect"], [4, 4, 2, 2, 2])[0]
        counts[what] += 1
        if what == "kill":
            ranks.kill(place)
            later(place, chance.uniform(0, 0.8), ranks.start)
        elif what == "stop":
            ranks.signal(place, signal.SIGSTOP)
            later(place, chance.uniform(0.05, 2.0), lambda place: ranks.signal(place, signal.SIGCONT))
        elif what == "leave":
            later(place, 0, lambda place: (ranks.drain(place), ranks.start(place)))
        else:
            engine.tell(f"{what} {place}")
    for thread in threads:
        thread.join()
    return counts


def slope(points):
    """Least squares, per second."""
    count = len(points)
    if count < 2:
        return 0.0
    middle_x, middle_y = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
    square = sum((x - middle_x) ** 2 for x, _ in points)
    return sum((x - middle_x) * (y - middle_y) for x, y in points) / square if square else 0.0


def judge(ranks, engine, status):
    """The rows of the table: (what, what was seen, the faults)."""
    sent, ended, lives = collections.Counter(), collections.defaultdict(list), {}
    faults = collections.defaultdict(list)
    late = []
    for words in engine.lines:
        match words:
            case ["sent", conn, _, count, _]:
                sent[int(conn)] += int(count)
            case ["ended", conn, kind, accepted, acknowledged, ended_by]:
                ended[int(conn)].append((int(kind), int(accepted), int(acknowledged), int(ended_by)))
            case ["lives", conn, accepted, acknowledged]:
                lives[int(conn)] = (int(accepted), int(acknowledged))
            case ["late", *rest]:
                late.append(" ".join(rest))
            case ["overflow", count]:
                faults["endings"].append(f"{count} events were lost")
            case ["broken", *rest]:
                faults["calls"].append(" ".join(rest))
    for conn, endings in ended.items():
        if len(endings) != 1:
            faults["endings"].append(f"connection {conn} ended {len(endings)} times")
        if conn in lives:
            faults["endings"].append(f"connection {conn} has ended and lives")
    for conn in sent:
        if conn not in ended and conn not in lives:
            faults["endings"].append(f"connection {conn} has no ending")

    arrived, drained = collections.Counter(), set()
    for path, conn, count, wrong, foreign in ranks.records():
        if conn in arrived:
            faults["foreign"].append(f"connection {conn} reached two lives of a rank")
        arrived[conn] += count
        if path in ranks.drained:
            drained.add(conn)
        if wrong:
            faults["order"].append(f"connection {conn}: {wrong} messages out of order, repeated or damaged")
        if foreign or conn not in sent:
            faults["foreign"].append(f"connection {conn}: {foreign} messages of another endpoint")
    accepted_all = acknowledged_all = 0
    for conn in ended.keys() | lives.keys():
        _, accepted, acknowledged, ended_by = ended[conn][0] if conn in ended else (0, *lives[conn], 0)
        accepted_all += accepted
        acknowledged_all += max(acknowledged, 0)
        text = f"connection {conn}: {accepted} accepted, {acknowledged} acknowledged, {arrived[conn]} arrived"
        if accepted != sent[conn]:
            faults["accounting"].append(f"{text}, and {sent[conn]} calls returned OK")
        if not 0 <= acknowledged <= accepted or arrived[conn] > accepted:
            faults["accounting"].append(text)
        if conn in lives and not accepted == acknowledged == arrived[conn]:
            faults["accounting"].append(f"{text}: it lives and was flushed")
        # A rank that has read everything before it left has all that was acknowledged.
        if ended_by == FIN and conn in drained and arrived[conn] < acknowledged:
            faults["accounting"].append(f"{text}: ended by FIN, and the rank read to the end")

    half = engine.samples[len(engine.samples) // 2 :]
    first = engine.samples[: len(engine.samples) // 2] or engine.samples
    most = lambda samples, column: max(sample[column] for sample in samples)  # noqa: E731
    descriptors, more = most(half, 1), most(half, 1) - most(first, 1)
    if more > DESCRIPTORS_MORE:
        faults["descriptors"].append(f"{more} more in the second half")
    growth = slope([(sample[0], sample[2]) for sample in half])
    grown = growth * (half[-1][0] - half[0][0])
    if grown > MEMORY_MORE:
        faults["memory"].append(f"{grown / 2**20:.1f} MiB more at the end of the second half")
    # The count of threads: senders, reader, main, kvconn's and libzmq's.
    if most(half, 3) > most(first, 3):
        faults["threads"].append(f"{most(half, 3)} after {most(first, 3)}")
    if status != 0:
        faults["exit"].append(f"the engine ended with {status}")
    if not accepted_all:
        faults["accounting"].append("nothing was sent")
    return [
        ("accounting", f"{len(ended) + len(lives)} connections: {accepted_all:,} accepted = {acknowledged_all:,} "
         f"acknowledged + {accepted_all - acknowledged_all:,} unacknowledged; {sum(arrived.values()):,} arrived"),
        ("endings", f"{len(ended)} ended, each once; {len(lives)} live"),
        ("order", "each sender's messages 1, 2, 3, … on each connection, none damaged"),
        ("foreign", "no message reached another endpoint, or another life of its rank"),
        ("descriptors", f"at most {descriptors} in the second half, {more:+} against the first"),
        ("memory", f"{growth * 60 / 1024:+.0f} KiB a minute in the second half, {most(half, 2) / 2**20:.1f} MiB at most"),
        ("threads", f"at most {most(half, 3)}"),
        ("calls", f"no unexpected status; {len(late)} calls later than a second ({', '.join(late[:3]) or 'none'})"),
        ("exit", f"status {status}"),
    ], faults


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("minutes", type=float)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--ranks", type=int, default=6)
    parser.add_argument("--senders", type=int, default=2)
    options = parser.parse_args()
    print(f"soak: {options.minutes:g} minutes, {options.ranks} ranks, {options.senders} senders for each, seed {options.seed}",
          flush=True)
    with tempfile.TemporaryDirectory(prefix="kvconn-soak-") as folder:
        ranks = Ranks(options.ranks, folder)
        engine = Engine(options.program, options.senders, ranks.endpoints)
        try:
            counts = disturb(ranks, engine, options.minutes * 60, random.Random(options.seed))
            engine.tell_and_wait("stop", "stopped")
            ranks.wait_until_quiet()
            engine.tell_and_wait("finish", "finished")
            status = engine.process.wait(END_SECONDS)
            # What was acknowledged is in the kernels of the ranks; they read it before they leave.
            for place in range(options.ranks):
                ranks.drain(place)
        finally:
            engine.process.kill()
            for process in ranks.processes:
                process.kill()
        rows, faults = judge(ranks, engine, status)
    print("done:", ", ".join(f"{count} × {what}" for what, count in sorted(counts.items())))
    print(f"\n{'':12} verdict  seen")
    for name, seen in rows:
        print(f"{name:12} {'FAULT' if faults[name] else 'good':8} {seen}")
        for fault in faults[name][:5]:
            print(f"{'':21} {fault}")
    bad = [name for name, _ in rows if faults[name]]
    if bad:
        print(f"\nthe library's own description at the end: {options.program}.txt")
    print(f"\nsoak: {'FAULT in ' + ', '.join(bad) if bad else 'everything is good'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
