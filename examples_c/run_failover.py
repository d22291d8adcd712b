"""The demo: runs the decode engine (failover.c) against four rank processes, kills node B under load, restarts rank A1
under load, and proves the outcome.

    run_failover.py [--peer KVCONN_PEER [--no-pyzmq]] PATH_OF_FAILOVER [PATH_OF_PICTURE.svg]

The ranks are ordinary PULL sockets. Rank 1 of each node is rank.py, which needs pyzmq. Rank 0 is the program
kvconn-peer, if it is given; without pyzmq all are. Both write each message that they receive to a file.

Prints one timeline of both sides, then a table of every connection: messages accepted, acknowledged and received.
Exits 0 when the proof holds. No step starts at a fixed time: each waits, with a deadline, for the effect of the step
before. The picture needs matplotlib (picture.py); without it the demo runs and says that the picture is left out.
"""

import argparse
import collections
import importlib.util
import itertools
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

RANK_PROGRAM = pathlib.Path(__file__).with_name("rank.py")
# A queue so small that messages that a rank does not read soon wait at their sender.
RANK_OPTIONS = "--rcvhwm 64 --rcvbuf 131072 --step-ms 10 --last-step-ms 400".split()
DEADLINE_SECONDS = 60.0  # for each step; an idle machine needs about one
UNDER_LOAD = 1000  # messages that a rank must have received before the next step
BACKLOG = 600  # messages for a rank that reads none: far more than its queue and its kernel hold
SAMPLE_SECONDS = 0.020  # between two looks at what the ranks have received

Message = collections.namedtuple("Message", "conn sequence room")
ZERO = time.monotonic()


def now_ms():
    return (time.monotonic() - ZERO) * 1000


def show(line):
    """In one call, its end included: two threads print lines."""
    sys.stdout.write(line)
    sys.stdout.flush()


def say(what, details):
    """Prints one line of the timeline; returns when."""
    ms = now_ms()
    show(f"{ms:9.1f}  {what:<12}  {details}\n")
    return ms


class Rank:
    """One life of a rank process."""

    def __init__(self, name, directory, program, endpoint="tcp://127.0.0.1:*"):
        self.name = name
        self.program = program
        self.samples = []  # (ms, messages received), for the picture
        self.wrong = []  # messages that the engine did not send in this form
        self._messages = []
        self._unread = b""  # the beginning of a message
        self._lock = threading.Lock()
        record = directory / f"{name}-{time.monotonic_ns()}"
        arguments = [*program, "--record", record, *RANK_OPTIONS, endpoint]
        self.process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        said, _, self.endpoint = self.process.stdout.readline().strip().partition(" ")
        if said != "bound":
            sys.exit(f"run_failover: rank {name} did not start")
        self._record = record.open("rb")

    def count(self):
        return len(self.received())

    def received(self):
        """The messages until now, in their order."""
        with self._lock:
            self._unread += self._record.read()
            at = 0
            while (end := end_of_message(self._unread, at)) is not None:
                frames = frames_of_message(self._unread, at)
                message = message_of_engine(frames)
                self._messages.append(message) if message else self.wrong.append(frames)
                at = end
            self._unread = self._unread[at:]
            return self._messages


def sizes_of_message(record, at):
    """The sizes of its frames; None if they are not there yet."""
    if len(record) < at + 4:
        return None
    (count,) = struct.unpack_from("=I", record, at)
    return struct.unpack_from(f"={count}I", record, at + 4) if len(record) >= at + 4 + 4 * count else None


def end_of_message(record, at):
    """Where the next message begins; None if this one is not whole yet."""
    sizes = sizes_of_message(record, at)
    end = None if sizes is None else at + 4 + 4 * len(sizes) + sum(sizes)
    return None if end is None or end > len(record) else end


def frames_of_message(record, at):
    sizes = sizes_of_message(record, at)
    begins = itertools.accumulate(sizes, initial=at + 4 + 4 * len(sizes))
    return [record[begin : begin + size] for begin, size in zip(begins, sizes)]


def message_of_engine(frames):
    """What the engine has stamped on the message. None if its frames do not belong together: two were mixed up."""
    if len(frames) != 10 or not frames[0].isdigit() or len(frames[9]) != 16:
        return None
    room = int(frames[0])
    whole = frames[5] == struct.pack("=128Q", *range(room * 128, room * 128 + 128))  # the pages of this room
    return Message(*struct.unpack("=QQ", frames[9]), room) if whole else None


class Engine:
    """The process under test. Its timeline is printed as it arrives; its JSON reports are kept."""

    name = "the engine"

    def __init__(self, program, nodes):
        arguments = [text for name, ranks in nodes.items() for text in (name, *(rank.endpoint for rank in ranks))]
        environment = {**os.environ, "TIMELINE_ZERO_MS": repr(ZERO * 1000)}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([program, *arguments], env=environment, **pipes)
        self.reports = []
        self.timeline = []  # (ms, step, details)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            if line.startswith("{"):
                self.reports.append(json.loads(line))
            else:
                show(line)
                ms, step, details = line.rstrip().split(maxsplit=2)
                self.timeline.append((float(ms), step, details))

    @property
    def steps(self):
        """When each step was first taken."""
        return {step: ms for ms, step, _ in reversed(self.timeline)}

    def tell(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def wait(self):
        status = self.process.wait(DEADLINE_SECONDS)
        self.reader.join(DEADLINE_SECONDS)
        if status != 0:
            sys.exit(f"run_failover: the engine ended with status {status}")

    def reports_with(self, key):
        return [report for report in self.reports if key in report]


def wait_until(what, condition, alive):
    """Whether the condition became true in time. Exits when a process that should be alive is not."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        for one in alive:
            if one.process.poll() is not None:
                sys.exit(f"run_failover: {one.name} ended, status {one.process.returncode}, before {what}")
        if time.monotonic() > deadline:
            print(f"run_failover: waited {DEADLINE_SECONDS:.0f} s, but not until {what}", file=sys.stderr)
            return False
        time.sleep(0.002)
    return True


def sample(lives, stop):
    """Notes what each rank process has received, until told to stop."""
    while not stop.wait(SAMPLE_SECONDS):
        for life in list(lives):
            life.samples.append((now_ms(), life.count()))


def rank_programs(peer, pyzmq):
    """The programs of rank 0 and of rank 1 of each node."""
    python = [sys.executable, RANK_PROGRAM] if pyzmq else None
    if not peer and not python:
        sys.exit("run_failover: the ranks need pyzmq, or the program kvconn-peer (--peer)")
    return ([peer] if peer else python, python or [peer])


def run(program, programs, directory):
    """The story. Returns the engine, every rank process, and when each step was taken here."""
    print(f"{'ms':>9}  {'what':<12}  details")
    nodes = {name: [Rank(f"{name}{r}", directory, programs[r]) for r in range(2)] for name in "AB"}
    lives = nodes["A"] + nodes["B"]
    engine = Engine(program, nodes)
    when = {}
    stop_sampling = threading.Event()
    sampler = threading.Thread(target=sample, args=(lives, stop_sampling))
    sampler.start()

    def step(what, condition, alive):
        if not wait_until(what, condition, [engine, *alive]):
            sys.exit(1)

    def loaded(ranks, messages=UNDER_LOAD):
        goals = [(rank, rank.count() + messages) for rank in ranks]
        return lambda: all(rank.count() >= goal for rank, goal in goals)

    try:
        step("both nodes serve", loaded(lives), lives)

        when["KILL"] = say("KILL", "node B: SIGKILL to both of its rank processes")
        for rank in nodes["B"]:
            rank.process.kill()
        for rank in nodes["B"]:
            rank.process.wait()
        step("the engine has rerouted", lambda: "REROUTED" in engine.steps, nodes["A"])
        step("node A serves alone", loaded(nodes["A"]), nodes["A"])

        again = [Rank(rank.name, directory, rank.program, rank.endpoint) for rank in nodes["B"]]
        lives += again
        text = "node B: new processes listen on the same ports, and discovery tells the engine"
        when["RESTART B"] = say("RESTART", text)
        engine.tell("back B")
        living = nodes["A"] + again
        step("node B serves again", loaded(again), living)

        stays, leaves = nodes["A"]
        living.remove(leaves)
        when["BUSY"] = say("BUSY", "rank A1: SIGSTOP stands for a long step of computing, in which it reads nothing")
        leaves.process.send_signal(signal.SIGSTOP)
        step("messages for rank A1 are in flight", loaded([stays], BACKLOG), living)
        engine.tell("leaving A1")
        step("the engine knows that rank A1 will restart", lambda: "LEAVING" in engine.steps, living)
        when["SIGTERM"] = say("SIGTERM", "rank A1: it half-closes, reads what still arrives, and exits")
        leaves.process.terminate()
        leaves.process.send_signal(signal.SIGCONT)
        step("rank A1 has drained", lambda: leaves.process.poll() is not None, living)
        if leaves.process.returncode != 0:
            sys.exit(f"run_failover: rank A1 ended with status {leaves.process.returncode}")
        step("the engine knows what is unacknowledged", lambda: "UNACKED" in engine.steps, living)

        successor = Rank(leaves.name, directory, leaves.program, leaves.endpoint)
        lives.append(successor)
        living.append(successor)
        text = "rank A1: a new process listens on the same port, and discovery tells the engine"
        when["RESTART A1"] = say("RESTART", text)
        engine.tell("back A1")
        step("node A serves again", loaded([successor]), living)

        say("STOP", "the engine finishes what is in flight")
        engine.tell("stop")
        engine.wait()
        # What the engine left is in the kernel or in the ranks' queues: they read all of it, unless it is lost.
        accepted = sum(report["accepted"] for report in engine.reports_with("conn") if not died(report))
        wait_until("the ranks have read everything", lambda: sum(map(Rank.count, living)) >= accepted, living)
        time.sleep(0.2)  # a duplicate would arrive now
        return engine, lives, when
    finally:
        stop_sampling.set()
        sampler.join()
        for process in [engine.process, *(rank.process for rank in lives)]:
            process.kill()
            process.wait()


def died(report):
    """Whether a connection ended otherwise than by the engine's own stop."""
    return report["ended"] != "DISCONNECTED"


def prove(engine, lives, killed):
    """Prints the table and the findings. Returns whether all of them hold."""
    # By rank, and for each rank in the order of the ends: ids have no order.
    reports = sorted(engine.reports_with("conn"), key=lambda report: report["rank"])
    taken = {life: collections.defaultdict(list) for life in lives}  # by each process: connection → sequences
    for life in lives:
        for message in life.received():
            taken[life][message.conn].append(message.sequence)

    width = max(len("connection"), *(len(str(report["conn"])) for report in reports)) + 2
    head = f"{'rank':<6}{'connection':<{width}}{'accepted':>9}{'acknowledged':>14}{'received':>10}"
    print(f"\n{head}{'not received here':>19}  how it ended")
    lost = collections.Counter()  # by node, on connections that died; None: on all others
    never_more = True
    for report in reports:
        received = sum(len(sequences.get(report["conn"], ())) for sequences in taken.values())
        missing = report["accepted"] - received
        lost[report["rank"][0] if died(report) else None] += missing
        never_more &= missing >= 0
        rank, conn, accepted, acknowledged = (report[key] for key in ("rank", "conn", "accepted", "acknowledged"))
        end = report["ended"] if report["by"] == "LOCAL" else f"{report['ended']} by {report['by']}"
        again = received_later(engine, lives, report) if missing > 0 else 0
        if again > 0:
            end += f"; {'all' if again == missing else again} sent again to the next connection"
        print(f"{rank:<6}{conn:<{width}}{accepted:>9}{acknowledged:>14}{received:>10}{missing:>19}  {end}")

    # The first connection of a rank belongs to the first process of that rank, the second to the second.
    belongs = {}
    for rank, its in itertools.groupby(reports, key=lambda report: report["rank"]):
        processes = (life for life in lives if life.name == rank)
        belongs |= {report["conn"]: life for report, life in zip(its, processes, strict=True)}
    all_taken = [(life, conn, sequences) for life in lives for conn, sequences in taken[life].items()]
    to_its_own = all(belongs.get(conn) is life for life, conn, _ in all_taken)
    in_order = all(sequences == list(range(1, len(sequences) + 1)) for _, _, sequences in all_taken)
    on_b = sum(died(report) for report in reports if report["rank"].startswith("B"))
    failed = [room for report in engine.reports_with("failed") for room in report["rooms"]]
    told = {rank: rooms(life for life in lives if life.name == rank) for rank in ("A0", "A1")}
    (totals,) = engine.reports_with("started")
    findings = {
        f"{lost['B']} accepted messages were not received, all on the {on_b} connections that died with node B": (
            lost[None] == 0 and never_more and on_b == 2
        ),
        "each connection delivered 1, 2, 3, ... without a gap: nothing twice, mixed up or out of order": in_order,
        "nothing accepted for one life of a rank reached the next without being sent again": to_its_own,
        f"{len(failed)} requests failed with node B, each reported once, and both ranks of node A got all of them": (
            len(failed) == len(set(failed)) == totals["rerouted"] > 0
            and all(set(failed).issubset(each) for each in told.values())
        ),
        f"{totals['started']} requests were started, and {totals['done']} done": totals["started"] == totals["done"],
    }
    findings |= findings_of_the_restart(engine, lives, told)
    print()
    for text, holds in findings.items():
        print(f"{'proved' if holds else 'BROKEN'}  {text}")
    steps = engine.steps
    seen, rerouted = (steps[step] - killed for step in ("PEER_LOST", "REROUTED"))
    print(f"\nThe kill was seen after {seen:.1f} ms, and its requests were on node A after {rerouted:.1f} ms.")
    return all(findings.values())


def received_later(engine, lives, end):
    """How many messages that a rank's process did not receive were sent again, and reached its next process."""
    (report,) = engine.reports_with("unacknowledged")
    if report["of"] != end["conn"]:
        return 0
    first, second = (life for life in lives if life.name == end["rank"])
    received = {message.sequence for message in first.received() if message.conn == end["conn"]}
    unacknowledged = enumerate(report["unacknowledged"], end["acknowledged"] + 1)
    later = {message.room for message in second.received()}
    return sum(room in later for sequence, room in unacknowledged if sequence not in received)


def rooms(lives):
    """How often each room was received."""
    return collections.Counter(message.room for life in lives for message in life.received())


def findings_of_the_restart(engine, lives, told):
    """The outcome of the messages for rank A1 when it was restarted."""
    first, second = (life for life in lives if life.name == "A1")
    (report,) = engine.reports_with("unacknowledged")
    (end,) = (end for end in engine.reports_with("conn") if end["conn"] == report["of"])
    accepted, acknowledged, by = end["accepted"], end["acknowledged"], end["by"]
    resent = report["unacknowledged"]  # the rooms of the messages after the last acknowledged
    of_sequence = {message.sequence: message.room for message in first.received() if message.conn == end["conn"]}
    late = {sequence: room for sequence, room in of_sequence.items() if sequence > acknowledged}
    twice = {room for room, times in told["A1"].items() if times == 2}
    return {
        f"rank A1 left by {by}: its first life has received all {acknowledged} messages acknowledged until then": (
            by == "FIN" and of_sequence.keys() >= set(range(1, acknowledged + 1))
        ),
        f"the {len(resent)} after them, {acknowledged + 1} to {accepted}, reached its second life, before all others": (
            len(resent) == accepted - acknowledged > 0
            and resent == [message.room for message in second.received()][: len(resent)]
            and late.items() <= dict(enumerate(resent, acknowledged + 1)).items()
        ),
        f"{len(twice)} of these had reached the first late as well: only what was reported arrived twice": (
            twice == set(late.values()) <= set(resent)
            and set(told["A1"].values()) <= {1, 2}
            and set(told["A0"].values()) <= {1}
        ),
        f"{len(told['A0'])} requests reached rank A0, and the same reached rank A1: everything arrived at least once": (
            told["A0"].keys() == told["A1"].keys()
        ),
    }


def draw(path, engine, lives, when):
    """Draws the run, or says why not: the picture is no part of the proof."""
    try:
        import picture
    except ImportError as error:
        print(f"The picture is left out: {error}.")
        return
    picture.draw(path, engine, lives, when)
    print(f"The picture of this run: {path}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", help="the program kvconn-peer")
    parser.add_argument("--no-pyzmq", action="store_true", help="use kvconn-peer for all ranks")
    parser.add_argument("failover", help="the engine")
    parser.add_argument("picture", nargs="?", help="an SVG file to write")
    options = parser.parse_args()
    pyzmq = not options.no_pyzmq and importlib.util.find_spec("zmq") is not None
    programs = rank_programs(options.peer, pyzmq)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no process stays behind
    with tempfile.TemporaryDirectory(prefix="kvconn-demo-") as directory:
        engine, lives, when = run(options.failover, programs, pathlib.Path(directory))
        holds = prove(engine, lives, when["KILL"])
        for life in lives:
            if life.wrong:
                print(f"BROKEN  rank {life.name} received {len(life.wrong)} messages with frames of others")
                holds = False
        names = ["pyzmq" if program[0] == sys.executable else "kvconn-peer" for program in programs]
        print(f"Rank 0 of each node was {names[0]}, rank 1 {names[1]}.")
        if options.picture:
            draw(options.picture, engine, lives, when)
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
