"""The documents show the very files, and their code and links work."""

import os
import pathlib
import re
import socket
import subprocess
import sys

import pytest
from sharing import ROOT, canonical, nobody, run  # noqa: F401: fixtures are found by name


def text(path):
    return (ROOT / path).read_text(encoding="utf-8")


def code_blocks(document, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text(document), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("file", ["examples_c/quickstart.c", "examples_python/quickstart.py"])
def test_the_readme_shows_the_file_itself(file):
    language = {".c": "c", ".py": "python"}[pathlib.Path(file).suffix]
    assert text(file) in code_blocks("README.md", language), f"README.md does not show {file} as it is"


RANKS_IN_C = {
    "kvconn_send_batch": "const kvconn_conn_t *conns, kvconn_frame_t pages, const kvconn_frame_t *slices",
    "kvconn_node_connect": "kvconn_node_t node, const char *const *endpoints",
    "kvconn_take_failure": "kvconn_manager_t m, void (*send_again)(uint64_t request)",
}


@pytest.mark.parametrize("function", RANKS_IN_C)
def test_the_guide_speaks_to_many_ranks_in_c(tmp_path, function):
    (block,) = [block for block in code_blocks("docs/guide.md", "c") if function in block]
    program = tmp_path / "ranks.c"
    head = "#include <kvconn.h>\n#include <stdio.h>\n#define RANKS 8\n"
    head += f"void f({RANKS_IN_C[function]}) {{\n"
    program.write_text(f"{head}kvconn_error_t error = KVCONN_ERROR_INIT;\n{block}}}\n")
    strict = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{ROOT / 'include'}", "-fsyntax-only"]
    result = run("cc", *strict, program)
    assert result.returncode == 0, result.stderr


def test_the_guide_sends_to_many_ranks_in_python(lib, peer):
    import kvconn

    (block,) = [block for block in code_blocks("docs/guide.md", "python") if "send_batch" in block]
    receivers = [peer("--keep"), peer("--keep")]
    conns = [kvconn.connect(receiver.endpoint, wait_ms=5000) for receiver in receivers]
    names = {"kvconn": kvconn, "conns": conns, "pages": b"for all", "slices": [b"one", b"two"]}
    exec(block, names)
    assert names["partial"] is None and [sent.status for sent in names["sent"]] == [0, 0]
    for receiver, part in zip(receivers, names["slices"]):
        receiver.expect(1)
        assert receiver.messages() == [[b"for all", part]]
    kvconn.disconnect(conns[1])
    exec(block, names)
    assert names["failed"] == conns[1:]


def test_the_guide_follows_a_node_in_python(lib, peer, nobody, capsys):
    import kvconn

    (block,) = [block for block in code_blocks("docs/guide.md", "python") if "node_open" in block]
    receiver = peer()
    other, _ = kvconn.node_open("other")
    kvconn.node_track_request(other, 5)
    assert kvconn._lib.kvconn_handle_failure(other, b"gone", None, None) == 0
    names = {"kvconn": kvconn, "endpoints": [canonical(receiver), nobody]}
    exec(block, names)
    assert [rank.status for rank in names["ranks"]] == [0, -7] and names["conns"] == [kvconn.find(canonical(receiver))]
    assert kvconn.node_info(names["node"])["endpoints"] == kvconn.node_info(names["node"])["requests"] == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0] == names["partial"].message and said[1:] == ["other: gone; to send again: [5]"]
    kvconn.handle_failure(names["node"])


def python_page():
    """The programs of docs/python.md: those that belong together, and the test of an engine."""
    blocks = code_blocks("docs/python.md", "python")
    (test,) = [block for block in blocks if "def test_" in block]
    blocks.remove(test)
    return blocks, test


def test_the_test_of_an_engine_in_the_python_page_passes(lib):
    _, test = python_page()
    names = {}
    exec(test, names)
    names["test_a_rank_restarts"]()


def test_the_programs_of_the_python_page_do_what_it_says(lib, peer, capsys):
    import asyncio

    import kvconn

    receiver = peer("--keep")
    names = {"kvconn": kvconn, "asyncio": asyncio, "endpoint": receiver.endpoint}
    functions, objects, failures, asynchronous, errors = python_page()[0]
    exec(functions, names)
    exec(objects, names)
    receiver.expect(2)
    names["manager"] = manager = kvconn.Manager({"max_failures": 1})
    for name in ("first", "second"):
        manager.open_node(name).track(len(name))
        lost = kvconn._lib.kvconn_handle_failure(kvconn.node_find(name, manager), None, None, None)
        assert lost == 0
        if name == "first":
            exec(failures, names)
            exec(asynchronous, names)
    asyncio.run(names["main"](manager))
    with pytest.raises(kvconn.Stale):
        manager.connections()
    names["stale_conn"] = kvconn.Manager.default().connect(receiver.endpoint, timeout=5)
    names["stale_conn"].disconnect()
    exec(errors, names)
    assert capsys.readouterr().out == "first [5]\nsecond [6]\nTrue KVCONN_DISCONNECTED\n"
    receiver.expect(3)


# What the text around the programs speaks of.
PAGE_NAMES = {
    "endpoint": '"tcp://10.0.0.7:5557"',
    "endpoints": '["tcp://10.0.0.7:5557"]',
    "manager": "kvconn.Manager()",
    "conn": "kvconn.Connection(1)",
    "stale_conn": "kvconn.Connection(1)",
    "conns": "[1]",
    "pages": 'b""',
    "slices": '[b""]',
    "array": "bytearray(1)",
}


@pytest.mark.parametrize("document", ["docs/python.md", "docs/guide.md", "python/README.md"])
def test_mypy_accepts_the_code_of_the_documents(tmp_path, document):
    """What a reader copies is right for a type checker, given the names that the text speaks of."""
    pytest.importorskip("mypy", reason="mypy is not installed (make python-tools)")
    programs = []
    for number, block in enumerate(code_blocks(document, "python")):
        programs.append(tmp_path / f"block{number}.py")
        missing = [name for name in PAGE_NAMES if not re.search(rf"\b{name} = |\bas {name}:", block)]
        names = "".join(f"{name} = {PAGE_NAMES[name]}\n" for name in missing)
        programs[-1].write_text(f"import asyncio\nimport kvconn\n{names}{block}")
    mypy = [sys.executable, "-m", "mypy", "--config-file=", "--cache-dir", ROOT / "target" / "mypy", "--follow-imports", "silent"]
    result = run(*mypy, "--strict", "--allow-untyped-defs", "--allow-untyped-calls", *programs, MYPYPATH=str(ROOT / "python"))
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("program", ["quickstart.c", "quickstart.py"])
def test_the_commands_of_the_readmes_quickstarts_work(lib, tmp_path, program):
    (block,) = [block for block in code_blocks("README.md", "sh") if program in block]
    build, peer_line, run_line = (line.partition("   #")[0].strip() for line in block.splitlines())
    assert build == "make lib peer"
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
    if not (target / "release" / "kvconn-peer").exists():
        pytest.fail("kvconn-peer is missing: run `make peer`")
    there = {"target/release": str(target / "release"), "$PWD/": "", "./quickstart": f"{tmp_path}/quickstart"}
    there |= {"-o quickstart": f"-o {tmp_path}/quickstart", "python3": sys.executable}
    for old, new in there.items():
        peer_line, run_line = peer_line.replace(old, new), run_line.replace(old, new)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    peer_line = peer_line.replace("5557 &", str(port)).replace("sleep 60 |", "exec")
    with subprocess.Popen(["sh", "-c", peer_line], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as rank:
        try:
            assert rank.stdout.readline() == f"bound tcp://127.0.0.1:{port}\n"  # as one writes it, not [::ffff:127.0.0.1]
            result = run("sh", "-ec", f"cd {ROOT}; {run_line} tcp://127.0.0.1:{port}")
            assert (result.returncode, result.stderr) == (0, "")
            assert re.fullmatch(rf"connection \d+ accepted message 1 for tcp://127.0.0.1:{port}\n", result.stdout)
        finally:
            rank.kill()


def test_make_help_names_each_group_once():
    shown = run("make", "--no-print-directory", "-C", ROOT, "help").stdout
    groups = re.findall(r"^(?=\S)(.+)\n  [a-z]", shown, re.MULTILINE)
    assert "Python" in groups and len(groups) == len(set(groups)), groups


def test_the_readme_is_short_and_in_order():
    readme = text("README.md")
    assert len(readme.splitlines()) < 200
    chapters = ["Two commands", "C", "Python", "Install and link"]
    chapters += ["What it guarantees", "The demo", "Costs", "Find your way"]
    assert re.findall(r"^## (.*)$", readme, re.MULTILINE) == chapters
    guarantees = readme.split("## What it guarantees")[1].split("\n## ")[0]
    assert re.findall(r"^(\d+)\. ", guarantees, re.MULTILINE) == [str(n) for n in range(1, 11)]


def table(document, row):
    """The cells of the first row of a document's tables that begins with this text."""
    line = next(line for line in text(document).splitlines() if line.startswith(f"| {row}"))
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_the_costs_of_the_readme_are_those_of_the_documents():
    def measured(case):
        """The sender's CPU of raw libzmq and of kvconn in ns; the ratios of it, of the process's, and of the throughput (stock, same)."""
        cells = table("docs/performance.md", case)
        raw, kvconn = cells[5].split(" → ")
        return raw, kvconn, *cells[6:8], *(cell.split(" ")[0] for cell in cells[3:5])

    raw, ours, _, process, *_ = measured("64 B, 1 thread → 1 endpoint ")
    small = f"{ours} ns of the sender's CPU per message (libzmq: {raw}); of the whole process {process} times libzmq's"
    assert small in table("README.md", "64-byte messages")[1]
    apart = text("docs/performance.md").split("**Where libzmq's thread runs on another processor than the sender**")[1]
    raw, ours = re.search(r"^\| 64 B, 1 thread → 1 endpoint .*? (\d+) → (\d+) \|", apart, re.MULTILINE).groups()
    assert f"crosses caches: {ours} ns (libzmq: {raw})" in table("README.md", "64-byte messages")[1]
    parts, ranks = (measured(case)[2] for case in ("12 × 43 B ", "10 × 200 B, 1 thread → 8 endpoints "))
    assert table("README.md", "12 frames")[1].startswith(f"{parts}; {ranks} times ")
    *_, stock, same = measured("64 KiB ")
    large = f"{same} times the throughput of libzmq with the same options, {stock} times that of libzmq with its own"
    assert table("README.md", "large")[1] == large

    ours, raw = (table("docs/performance.md", row)[2] for row in ("a send now and then", "anchor: such a send by raw libzmq, same"))
    assert table("README.md", "64 bytes now and then")[1].startswith(f"{ours} µs per send (libzmq: {raw})")

    connections, descriptors, _, _, idle = table("docs/limits.md", "3,000 ")[:5]
    each = int(descriptors) // int(connections.replace(",", ""))
    assert table("README.md", "descriptors |")[1].startswith(f"{each} per connection; ")
    assert table("README.md", "idle CPU")[1].startswith(f"{idle} % of a core with {connections} connections")
    memory = re.findall(r"Memory of an idle connection: ([\d.]+) KiB, .* ([\d.]+) KiB", text("docs/limits.md"))
    kvconn, libzmq = (round(float(kib)) for kib in memory[0])
    assert table("README.md", "memory")[1] == f"{kvconn} KiB per idle connection (libzmq alone: {libzmq})"
    (ready,) = re.findall(r"About ([\d,]+) connections become READY with 20,000 descriptors", text("docs/limits.md"))
    assert table("README.md", "descriptors |")[1].endswith(f"20,000 for about {ready}")


def test_the_glossary_leads_to_what_is_there():
    """Links are tested below; this is about what it says by name: chapters of the header, functions and options."""
    glossary, header, options = text("docs/glossary.md"), text("include/kvconn.h"), text("docs/options.md")
    chapters = set(re.findall(r"^(?:/| )\* == (.*?) =+$", header, re.MULTILINE))
    named = set(re.findall(r'kvconn\.h\)[^|]*?"([^"]+)"', glossary))
    assert len(named) > 5 and named <= chapters, named - chapters
    names = set(re.findall(r"`([a-z][a-z_]+)(?:\([a-z_]*\))?`", glossary)) - {"getaddrinfo", "linger", "flush_ms"}
    unknown = [name for name in names if f" {name}(" not in header and f"| `{name}` |" not in options]
    assert len(names) > 20 and not unknown
    words = glossary.lower()
    for word in ("backpressure", "dns", "tls", "musl", "alpine", "reconnect", "linger", "graceful shutdown", "heartbeat"):
        assert word in words
    for word in ("high-water mark", "ipv6", "kubernetes"):
        assert word in words


def test_the_dependencies_document_names_what_is_used():
    cargo = pytest.importorskip("tomllib").loads(text("Cargo.toml"))
    wrapper = pytest.importorskip("tomllib").loads(text("bundled/zeromq-src/Cargo.toml"))
    _, library, build, tests = re.split(r"^## .*$", text("docs/dependencies.md"), flags=re.MULTILINE)

    def named(chapter):
        rows = re.findall(r"^\| (`.*?) \|", chapter, re.MULTILINE)
        return {name for row in rows for name in re.findall("`(.*?)`", row)}

    assert named(library) == set(cargo["dependencies"])
    built = wrapper["dependencies"].items()
    assert {given["package"] if "package" in given else name for name, given in built} <= named(build)
    others = set(cargo["dev-dependencies"])
    others.update(*(target.get("dependencies", {}) for target in cargo.get("target", {}).values()))
    for requirements in ("tests/python/requirements.txt", "examples_c/requirements.txt"):
        others.update(re.findall(r"^[\w-]+", text(requirements), re.MULTILINE))
    assert others <= named(tests)


def test_the_links_of_the_documents_lead_somewhere():
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target, part in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?[^)]*\)", text(document)):
            if "://" in target:
                continue
            file = document.parent / target if target else document
            assert file.exists(), f"{document.name} links to {target}, which is not there"
            if part:
                assert part in anchors(file), f"{document.name} links to {target}#{part}, which is not there"


def anchors(document):
    """The names of the chapters of a document, as links spell them."""
    titles = re.findall(r"^#+ (.*)$", text(document), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_program_of_the_project_compiles_with_this_python():
    """Some run only by hand, such as benches/limits.py, and this may be an older Python than its author's."""
    generated = {"target", ".git", "node_modules"}
    programs = [path for path in ROOT.rglob("*.py") if not generated & {*path.relative_to(ROOT).parts}]
    assert ROOT / "benches/limits.py" in programs
    for path in programs:
        compile(path.read_text(), path, "exec")
