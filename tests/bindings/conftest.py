"""The fixtures of the tests of the bindings."""

import pytest

from runtimes import BUILDERS, build_go
from kvconn.testing import Peer  # runtimes says where the package is


@pytest.fixture
def peer():
    with Peer() as started:
        yield started


@pytest.fixture(scope="session", params=BUILDERS)
def engine(request, tmp_path_factory):
    """The command of one runtime's program, and its environment."""
    command, its_environment = BUILDERS[request.param](tmp_path_factory.mktemp(request.param))
    return [str(word) for word in command], its_environment


@pytest.fixture(scope="session")
def go_program(tmp_path_factory):
    """Builds a Go program from its text."""

    def build_it(text):
        directory = tmp_path_factory.mktemp("go")
        (directory / "go.mod").write_text("module kvconn.example/test\n\ngo 1.19\n")
        (directory / "main.go").write_text(text)
        return build_go(directory, directory)

    return build_it
