"""A real Prometheus scrapes the exporter, loads the rules and answers every query of the dashboard."""

import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from draftgate.observe.alerts import Choices, rules
from draftgate.observe.exporter import Exporter
from draftgate.observe.panels import ROWS
from draftgate.observe.table import METRICS

_DEADLINE_S = 60.0


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as response:
        return json.loads(response.read())["data"]


def until(holds: Callable[[], Any], what: str) -> Any:
    """Ask again and again until something holds."""
    end_s = time.monotonic() + _DEADLINE_S
    while time.monotonic() < end_s:
        try:
            if found := holds():
                return found
        except OSError:  # not listening yet
            pass
        time.sleep(0.02)
    raise AssertionError(f"not within {_DEADLINE_S:.0f} s: {what}")


@contextmanager
def running(prometheus: str, folder: Path, target: int, listen: int) -> Iterator[str]:
    """Prometheus with our rules, scraping a port five times a second; gives its API's address."""
    (folder / "alerts.yml").write_bytes(rules(Choices()))
    scrape = {"job_name": "draftgate", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}
    config = {
        "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "200ms"},
        "rule_files": ["alerts.yml"],
        "scrape_configs": [scrape],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    words = [prometheus, "--config.file=prometheus.yml", f"--web.listen-address=127.0.0.1:{listen}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*words, "--storage.tsdb.path=data"], cwd=folder, stderr=log, stdout=log)
    try:
        api = f"http://127.0.0.1:{listen}/api/v1"
        until(lambda: process.poll() is not None or get(f"{api}/status/buildinfo"), "Prometheus answers")
        assert process.poll() is None, (folder / "log").read_text()
        yield api
    finally:
        process.terminate()
        process.wait()


def query(api: str, expr: str) -> list[Any]:
    found: list[Any] = get(f"{api}/query?" + urllib.parse.urlencode({"query": expr}))["result"]
    return found


def value(api: str, expr: str) -> float | None:
    found = query(api, expr)
    return float(found[0]["value"][1]) if found else None


def test_a_real_prometheus_gets_everything(
    prometheus: str, tmp_path: Path, free_port: Callable[[], int], feed: Callable[[Exporter], Exporter]
) -> None:
    exporter = feed(Exporter(["code"]))
    with exporter.serve(0) as port, running(prometheus, tmp_path, port, free_port()) as api:
        until(lambda: value(api, 'up{job="draftgate"}') == 1, "a scrape succeeds")
        names = set(get(f"{api}/label/__name__/values"))
        assert {row.name for row in METRICS} <= names
        assert {"process_start_time_seconds", "process_resident_memory_bytes"} <= names
        metadata = get(f"{api}/metadata")
        for row in METRICS:
            found = metadata[row.name.removesuffix("_total")]  # OpenMetrics names the family of a counter so
            assert [(m["type"], m["help"]) for m in found] == [(row.kind, row.help)]
        assert value(api, 'draftgate_accepted_tokens_total{workload="code"}') == 100
        assert value(api, "draftgate_speedup_ratio") == 1.25

        feed(exporter)
        until(lambda: value(api, "increase(draftgate_accepted_tokens_total[1m])"), "the next window is scraped")
        for panels in ROWS.values():
            for panel in panels:
                for expr, _ in panel.queries:
                    asked = re.sub(r"\$(job|instance|workload)", ".*", expr).replace("$over", "1m")
                    until(lambda asked=asked: query(api, asked), f"{panel.title} has data")

        groups = until(
            lambda: (
                (g := get(f"{api}/rules")["groups"])
                and all(r["lastEvaluation"][:4] != "0001" for r in g[0]["rules"])
                and g
            ),
            "the rules have been evaluated",
        )
        assert [r["health"] for r in groups[0]["rules"]] == ["ok"] * len(groups[0]["rules"])


def test_a_restarted_controller_is_a_reset_and_not_a_fall(
    prometheus: str, tmp_path: Path, free_port: Callable[[], int], feed: Callable[[Exporter], Exporter]
) -> None:
    """300 tokens are scraped of the first controller beyond its first scrape, and 200 of the second."""
    port, steps = free_port(), "draftgate_accepted_tokens_total"
    with running(prometheus, tmp_path, port, free_port()) as api:
        for windows in (4, 2):
            exporter = Exporter(["code"])
            with exporter.serve(port):
                for n in range(1, windows + 1):
                    feed(exporter)
                    until(lambda n=n: value(api, f"{steps} and on () up == 1") == 100 * n, f"{n} windows are scraped")
            until(lambda: value(api, "up") == 0, "it is gone")
        # Raw differences: `increase` extrapolates to the whole minute.
        assert value(api, f"resets({steps}[1m])") == 1
        grown = value(api, f"increase({steps}[1m])")
        assert grown is not None
        assert grown >= 300 + 200
