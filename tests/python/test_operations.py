"""What docs/operations.md tells the person on call exists: the metrics of its table and of its rules, and their labels."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
HEADER = (ROOT / "include" / "kvconn.h").read_text(encoding="utf-8")
METRICS = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
# What a sample is called: a histogram has three.
SUFFIXES = {"counter": [""], "gauge": [""], "info": [""], "histogram": ["_bucket", "_sum", "_count"]}


def families():
    """The table's rows: name, type, labels."""
    rows = re.findall(r"^\| `(kvconn_\w+)` \| (\w+) \| ([^|]*) \|", METRICS, re.MULTILINE)
    assert len(rows) > 30
    return {name: (kind, re.findall(r"`(\w+)`", labels)) for name, kind, labels in rows}


def samples():
    return {name + suffix: labels for name, (kind, labels) in families().items() for suffix in SUFFIXES[kind]}


def rules():
    """alert → expression."""
    (block,) = re.findall(r"^```yaml\n(.*?)^```", OPERATIONS, re.MULTILINE | re.DOTALL)
    found = re.findall(r"- alert: (\w+).*\n +expr: (.+)\n", block)
    assert len(found) == block.count("alert:") == block.count("expr:") > 8
    return dict(found)


def alerts():
    """The metrics of the table."""
    table = OPERATIONS[OPERATIONS.index("| metric | alert when |") :].partition("\n\n")[0]
    return [name for row in table.splitlines()[2:] for name in re.findall(r"`(kvconn_\w+)", row.split("|")[1])]


def test_every_metric_of_the_page_exists():
    used = [name for expression in rules().values() for name in re.findall(r"kvconn_\w+", expression)]
    assert used and set(used) <= samples().keys()
    assert alerts() and set(alerts()) <= families().keys()
    first_minutes = re.findall(r"`(kvconn_\w+)(?:\{[^`]*)?`", OPERATIONS)
    functions = set(re.findall(r"\b(kvconn_\w+)\(", HEADER))
    assert set(first_minutes) <= samples().keys() | families().keys() | functions


def test_every_alert_of_the_table_has_a_rule():
    used = " ".join(rules().values())
    missing = [name for name in alerts() if name not in used and name != "kvconn_send_waiting"]
    assert missing == []
    assert "kvconn_send_blocked_seconds_bucket" in used  # the rule for what kvconn_send_waiting shows


def test_every_label_of_the_rules_exists():
    for expression in rules().values():
        for name, selector in re.findall(r"(kvconn_\w+)\{([^}]*)\}", expression):
            for label, value in re.findall(r'(\w+)="([^"]*)"', selector):
                assert label in samples()[name], expression
                assert label != "status" or f" KVCONN_{value} = -" in HEADER, expression
