import inspect
import re
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import prometheus_client
import pytest

from draftgate.control import lane, loop
from draftgate.observe.exporter import Exporter, registry
from draftgate.observe.metric import LABELS
from draftgate.observe.query import per, ratio, selector
from draftgate.observe.table import METRICS, metric
from draftgate.observe.words import markdown

ROOT = Path(__file__).parents[2]


def test_names_follow_the_conventions() -> None:
    assert [name for name, n in Counter(row.name for row in METRICS).items() if n > 1] == []
    for row in METRICS:
        assert re.fullmatch(r"draftgate_[a-z0-9]+(_[a-z0-9]+)*", row.name)
        assert row.name.endswith("_total") == (row.kind == "counter")
        assert row.help.endswith(".")
        assert "\n" not in row.help
        assert set(row.labels) <= LABELS.keys()
        assert row.labels[:1] == ("workload",) or len(row.labels) <= 1


def test_promtool_finds_nothing_to_improve(promtool: str, feed: Callable[[Exporter], Exporter]) -> None:
    text = prometheus_client.generate_latest(registry(feed(Exporter())))
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    # promtool reads what is there: all of it must be
    assert all(f"# TYPE {row.name} {row.kind}\n".encode() in text for row in METRICS)


def test_promtool_would_find_something(promtool: str) -> None:
    text = b"# TYPE draftgate_steps counter\ndraftgate_steps 1\n"
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
    assert done.returncode != 0


def test_label_values_are_those_of_the_loop() -> None:
    topics = {topic.replace(" ", "_") for topic in re.findall(r'_topic\("([^"]+)"', inspect.getsource(loop))}
    assert topics - {"lease"} == set(LABELS["kind"] or ()) - {"window", "trace", "status"}
    actions = re.findall(r'(?:return|_decided\(now_s,) "([a-z-]+)"', inspect.getsource(lane))
    assert set(actions) == set(LABELS["action"] or ())
    recorder = (ROOT / "src/draftgate/engines/vllm/tracing.py").read_text()
    assert all(f'"{reason.replace("_", " ")}"' in recorder for reason in LABELS["reason"] or ())


def test_the_documentation_has_the_table() -> None:
    assert markdown() in (ROOT / "docs" / "observability.md").read_text(), "run: draftgate observe metrics"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: selector("draftgate_steps"), "draftgate_steps"),
        (lambda: per("draftgate_steps_total", "1h", ("position",)), "has no label position"),
        (lambda: per("draftgate_tau", "1h", ()), "is a gauge"),
        (lambda: ratio("draftgate_steps_total", "draftgate_step_total", "1h", ()), "draftgate_step_total"),
        (lambda: metric("x"), "x"),
    ],
)
def test_queries_of_what_does_not_exist_are_errors(make: Callable[[], Any], says: str) -> None:
    with pytest.raises((KeyError, ValueError), match=says):
        make()


def test_matchers_of_other_labels_are_left_out() -> None:
    matchers = ('workload=~".*"', 'position!~"1"', 'job!="x"', 'state="open"')
    assert selector("draftgate_tau", *matchers) == 'draftgate_tau{workload=~".*",job!="x"}'
