"""kvconn.hpp compiles cleanly everywhere, refuses what it must refuse, and leaves out no call and no constant."""

import re

import pytest
from conftest import HERE, ROOT, STANDARDS, STRICT, at_once, compiler, link_flags, run, standard

INCLUDE = f"-I{ROOT / 'include'}"
FORMS = {"with everything": [], "without exceptions and RTTI": ["-fno-exceptions", "-fno-rtti"]}


@pytest.mark.parametrize("name", ["g++", "clang++"])
def test_the_header_is_clean(name):
    """Every inline function of it, and every template that the behaviour tests use."""
    words = compiler(name)
    jobs = [(std, "with everything") for std in STANDARDS] + [("c++17", form) for form in ("without exceptions and RTTI", "strict")]

    def check(std, form):
        flags = FORMS.get(form, ["-DKVCONN_STRICT_IDS"])
        sources = [HERE / "api.cpp"] + [ROOT / "examples_cpp" / "engine.cpp"] * (form == "with everything")
        return run(*words, standard(words, std), *STRICT, *flags, INCLUDE, "-fsyntax-only", *sources)

    results = at_once([lambda job=job: check(*job) for job in jobs])
    said = [f"{name} {job}:\n{result.stdout}" for job, result in zip(jobs, results) if result.returncode or result.stdout]
    assert not said, "\n".join(said)


def diagnosed(said, file):
    """The lines of a file with an error, each with what the compiler says about it."""
    found = {}

    def note(number, text):
        found[int(number)] = found.get(int(number), "") + text + "\n"

    lines = said.splitlines()
    for at, line in enumerate(lines):
        place = re.match(rf"\S*{file}:(\d+):\d+: +(.*)", line)
        if place and "error:" in place[2]:
            note(place[1], place[2])
        # An assertion fails inside the header. A note names the line that is wrong: before it (gcc), behind it (clang).
        elif place and "required from here" in place[2]:
            note(place[1], lines[at + 1])
        elif place and "in instantiation of" in place[2]:
            note(place[1], next(text for text in reversed(lines[:at]) if "error:" in text))
    return found


def check_marks(words, flags, source):
    result = run(*words, *flags, "-Wall", "-Wextra", "-Werror", "-Wno-unused-variable", INCLUDE, "-fsyntax-only", source)
    found = diagnosed(result.stdout, source.name)
    wanted = {}
    for number, line in enumerate(source.read_text().splitlines(), 1):
        if "// error: " in line and not line.startswith("//"):
            wanted[number] = line.split("// error: ")[1]
    assert len(wanted) > 5
    missing = {n: pattern for n, pattern in wanted.items() if not re.search(pattern, found.get(n, ""))}
    others = {n: text for n, text in found.items() if n not in wanted}
    assert not missing, f"compiled, or for another reason: {missing}\n{result.stdout}"
    assert not others, f"did not compile: {others}"


def every_error(words):
    """The flag that makes this compiler report all errors of a file."""
    return "-ferror-limit=0" if "clang" in run(*words, "--version").stdout else "-fmax-errors=0"


@pytest.mark.parametrize("source", ["must_not_compile.cpp", "must_not_be_ignored.cpp"])
@pytest.mark.parametrize("name", ["g++", "clang++"])
def test_mistakes_do_not_compile(name, source):
    words = compiler(name)
    check_marks(words, ["-std=c++17", every_error(words)], HERE / source)


@pytest.mark.parametrize("name", ["gcc", "clang"])
def test_ids_cannot_be_mixed_up_in_strict_c(name):
    words, source = compiler(name), HERE / "must_not_mix.c"
    check_marks(words, ["-std=c11", every_error(words), "-DKVCONN_STRICT_IDS"], source)
    plain = run(*words, "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", INCLUDE, "-fsyntax-only", source)
    assert plain.returncode == 0, plain.stdout


def test_strict_c_runs_with_the_same_library(tmp_path):
    """The ABI of both forms is the same: a whole life of a connection and a node, compiled with the strict one."""
    program = tmp_path / "peer_lost"
    strict = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-DKVCONN_STRICT_IDS", INCLUDE]
    built = run(*compiler("gcc"), *strict, ROOT / "tests" / "c" / "peer_lost.c", "-o", program, *link_flags())
    assert built.returncode == 0, built.stdout
    result = run(program)
    assert (result.returncode, result.stdout) == (0, "")


def test_the_code_of_the_page_compiles(tmp_path):
    (block,) = re.findall(r"^```cpp\n(.*?)^```$", (ROOT / "docs" / "cpp.md").read_text(), re.MULTILINE | re.DOTALL)
    head, body = block.split("\n\n", 1)
    program = tmp_path / "page.cpp"
    program.write_text(f"#include <cstdio>\n{head}\nint main() {{\n{body}}}\n")
    result = run(*compiler("g++"), "-std=c++17", *STRICT, INCLUDE, "-fsyntax-only", program)
    assert result.returncode == 0, result.stdout


def header(name):
    return (ROOT / "include" / name).read_text(encoding="utf-8")


# Calls of C that C++ does not need, each with the reason.
NOT_IN_CPP = {
    "kvconn_send_batch_packed": "it is for languages that cannot pass an array of structs; kvconn::batch fills that array",
}


def test_every_call_of_c_has_a_form_in_cpp():
    calls = set((ROOT / "abi" / "kvconn.symbols").read_text().split())
    assert len(calls) > 50
    used = set(re.findall(r"\b(kvconn_\w+)\(", header("kvconn.hpp")))
    assert not calls - used - set(NOT_IN_CPP), f"kvconn.hpp does not call {sorted(calls - used - set(NOT_IN_CPP))}"
    assert set(NOT_IN_CPP) <= calls - used, "an exemption is not needed any more"


def test_every_constant_of_an_enum_is_in_its_enum_class():
    enums = re.findall(r"^enum kvconn_(\w+) KVCONN_INT32 \{\n(.*?)^\};", header("kvconn.h"), re.MULTILINE | re.DOTALL)
    assert len(enums) == len(re.findall(r"^enum class ", header("kvconn.hpp"), re.MULTILINE)) >= 7
    for name, body in enums:
        constants = re.findall(r"^    (KVCONN_\w+) = -?\d+,", body, re.MULTILINE)
        (cpp,) = re.findall(rf"^enum class {name} : std::int32_t \{{\n(.*?)^\}};", header("kvconn.hpp"), re.MULTILINE | re.DOTALL)
        entries = dict(re.findall(r"^    (\w+) = (\w+),", cpp, re.MULTILINE))
        assert list(entries.values()) == constants, name
        for entry, constant in entries.items():
            assert constant.lower().endswith(entry), f"{name}::{entry} = {constant}"


def test_every_try_form_has_a_throwing_form():
    text = header("kvconn.hpp")
    tried = set(re.findall(r"\btry_(\w+)\(", text)) - {"create", "set", "destroy"}  # members of owners
    throwing = text.split("// == The throwing forms")[1]
    form = r"^(\[\[nodiscard\]\] )?(inline )?[\w:<> ]+ {}\("
    missing = [name for name in sorted(tried) if not re.search(form.format(name), throwing, re.MULTILINE)]
    assert not missing, missing
