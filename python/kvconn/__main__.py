"""`kvconn`, or `python -m kvconn`: looks at endpoints, processes and options from the command line."""

import argparse
import json
import shutil
import sys
import textwrap

from . import __version__, _probe, _settings, _status
from ._errors import Error
from ._observe import describe

USAGE = 2  # as argparse's own


def main(arguments: list[str] | None = None) -> int:
    """Runs a command. Returns its exit code."""
    given = _parser().parse_args(arguments)
    try:
        code: int = given.run(given)
        return code
    except Error as error:
        print(f"kvconn: {error.message} ({error.name})", file=sys.stderr)
        return USAGE
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kvconn", description="Looks at endpoints, processes and options of kvconn.")
    parser.add_argument("--version", action="version", version=f"kvconn {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    codes = "\n".join(f"  {code:2}  {verdict:14}  {text}" for verdict, (code, text) in _probe.VERDICTS.items())
    probe = commands.add_parser(
        "probe",
        help="what an engine will meet at an endpoint",
        description="Resolves, dials and shakes hands as an engine does, and says what listens there. Sends no message.",
        epilog=f"exit codes:\n{codes}\n   2  a wrong argument\n\n"
        "Settings are taken from the environment (KVCONN_<NAME>), as in the engine. With --server-key the client's keys\n"
        "are KVCONN_CURVE_PUBLIC_KEY and KVCONN_CURVE_SECRET_KEY, or else a fresh pair.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    probe.add_argument("endpoint", help="tcp://host:port or ipc://path")
    probe.add_argument("--server-key", metavar="Z85", help="the peer's public CURVE key (write --server-key=KEY: a key may begin with -)")
    probe.add_argument("--timeout", type=_seconds, default=3.0, metavar="S", help="seconds for each step (3)")
    probe.add_argument("--json", action="store_true", help="one JSON object instead of text")
    probe.set_defaults(run=_run_probe)
    status = commands.add_parser(
        "status",
        help="the state of kvconn in a process, or in a file of its metrics",
        description="Reads a file of kvconn_metrics_text, or looks at a running process. The exit code is 0 if kvconn is "
        "found there, else 1.",
    )
    status.add_argument("target", metavar="PID|FILE", help="a process, a file with metrics, or - for standard input")
    status.add_argument(
        "--dump",
        action="store_true",
        help="with a PID: every connection and node, by gdb or lldb. The process stands still for a second or two",
    )
    status.set_defaults(run=_run_status)
    options = commands.add_parser(
        "options",
        help="every option, with its value here, default, range and meaning",
        description="Lists the options of kvconn with their values in this environment.",
    )
    options.add_argument("name", nargs="*", help="only options whose name contains this")
    options.set_defaults(run=_run_options)
    return parser


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.001 <= value <= 86400:
        raise argparse.ArgumentTypeError("must be from 0.001 to 86400 seconds")
    return value


def _run_probe(given: argparse.Namespace) -> int:
    result = _probe.probe(given.endpoint, given.server_key, given.timeout)
    if given.json:
        fields = result._asdict() | {"exit_code": result.exit_code, "steps": [step._asdict() for step in result.steps]}
        print(json.dumps(fields))
        return result.exit_code
    for step in result.steps:
        print(f"{step.step:9} {step.ms:8.1f} ms  {'' if step.ok else '! '}{step.text}")
    print(f"{result.verdict}: {result.text}")
    return result.exit_code


def _run_status(given: argparse.Namespace) -> int:
    target: str = given.target
    if target.isdigit():
        return _status.of_process(int(target), given.dump)
    if target == "-":
        return _status.of_metrics(sys.stdin.read())
    try:
        with open(target, encoding="utf-8", errors="replace") as file:
            return _status.of_metrics(file.read())
    except OSError as error:
        print(f"kvconn: {target}: {error.strerror}", file=sys.stderr)
        return USAGE


def _run_options(given: argparse.Namespace) -> int:
    here = _status.settings(describe())
    wanted = [row for row in _settings.SETTINGS if not given.name or any(part in row[0] for part in given.name)]
    width = min(shutil.get_terminal_size((100, 24)).columns, 120)
    for name, reach, values, default, text in wanted:
        value, source = here.get(name, ("", ""))
        now = "" if source in ("", "defaults") else f"; here: {value} (from the {source})"
        print(f"{name}  [{reach}]\n    values: {values}; default: {default}{now}")
        print(textwrap.fill(text, width, initial_indent="    ", subsequent_indent="    "))
    if not wanted:
        print(f"kvconn: there is no option with {' or '.join(given.name)} in its name", file=sys.stderr)
    return 0 if wanted else 1


if __name__ == "__main__":
    sys.exit(main())
