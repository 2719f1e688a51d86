"""Alert rules, run by Prometheus' own promtool: each fires in an incident and is silent otherwise."""

import random
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from draftgate.control.breaker import Breaker, Limits
from draftgate.errors import ConfigError
from draftgate.observe.alerts import FLAPS, Choices, alerts, rules
from draftgate.observe.query import TARGET
from draftgate.observe.table import metric

WRITTEN = Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yml"
ALL = {alert.name: alert for alert in alerts(Choices())}
AT = {"job": "draftgate", "instance": "a"}
CODE, JSON = AT | {"workload": "code"}, AT | {"workload": "json-records"}


@dataclass(frozen=True)
class Scene:
    """What is scraped each minute, and what an alert makes of it.

    Attributes:
        series: metric and labels -> values in promtool's notation.
        minute: when to look.
        fires: labels of what fires; None when nothing does.
    """

    alert: str
    series: Mapping[str, str]
    minute: int
    fires: Mapping[str, str] | None = None
    summary: str = ""
    more: Mapping[str, str] = field(default_factory=dict)


def at(name: str, labels: Mapping[str, str], **more: str) -> str:
    """A series; its metric and labels must be those of the table."""
    labels = {**labels, **more}
    if name != "up":
        assert labels.keys() == {*metric(name).labels, *TARGET}
    inside = ",".join(f'{k}="{v}"' for k, v in labels.items())
    return f"{name}{{{inside}}}"


def judged(labels: Mapping[str, str], judged: float, valid: float) -> dict[str, str]:
    return {
        at("draftgate_judged_outputs_total", labels): f"0+{judged}x120",
        at("draftgate_valid_outputs_total", labels): f"0+{valid}x120",
    }


def drafted(drafted: str, accepted: str) -> dict[str, str]:
    return {
        at("draftgate_drafted_tokens_total", CODE): drafted,
        at("draftgate_accepted_tokens_total", CODE): accepted,
    }


SPEEDUP, ON = at("draftgate_speedup_ratio", CODE), at("draftgate_speculation_on", CODE)
SEEN, CONTROLS = at("draftgate_metrics_timestamp_seconds", AT), at("draftgate_controls", AT)
LOOKED, IN_FORCE = at("draftgate_look_timestamp_seconds", AT), at("draftgate_in_force", AT)
OPEN, OPENED = at("draftgate_breaker_state", CODE, state="open"), at("draftgate_decisions_total", CODE, action="open")
ERRORS = at("draftgate_errors_total", AT, kind="source")
DROPPED = at("draftgate_trace_dropped_requests_total", AT, reason="lagged")
UP = at("up", AT)

INCIDENTS = [
    Scene("DraftgateCodeValidityLow", judged(CODE, 5, 4.5), 90, CODE, "code: fewer than 95% of outputs are valid"),
    Scene(
        "DraftgateStructuredValidityLow",
        judged(JSON, 5, 4.8),  # 96%, which the floor for code would let pass
        90,
        JSON,
        "json-records: fewer than 98% of outputs are valid",
    ),
    Scene(
        "DraftgateAcceptanceCollapse",
        drafted("0+1000x420", "0+800x360 288100+100x60"),
        382,
        CODE,
        "code: acceptance fell to 10%",
    ),
    Scene(
        "DraftgateNotPaying",
        {SPEEDUP: "0.9x30", ON: "1x30"},
        20,
        CODE,
        "code: speculation is on and at 90% of the speed without it",
    ),
    Scene("DraftgateControllerDown", {UP: "1x5 0x10"}, 10, AT, "A controller cannot be scraped"),
    Scene("DraftgateControllerDown", {}, 10, {"job": "draftgate"}, "A controller cannot be scraped"),
    Scene("DraftgateControllerStuck", {LOOKED: "0x20"}, 10, AT, "A controller has not looked for 10m 0s"),
    Scene(
        "DraftgateNobodyControls",
        {CONTROLS: "0x20", at("draftgate_controls", AT | {"instance": "b"}): "0x20"},
        10,
        {"job": "draftgate"},
        "All controllers stand by",
    ),
    Scene("DraftgateMetricsStale", {SEEN: "0x20", CONTROLS: "1x20"}, 10, AT, "No metrics of the engine arrive"),
    Scene("DraftgateMetricsStale", {CONTROLS: "1x20"}, 10, AT, "No metrics of the engine arrive"),
    Scene(
        "DraftgateBreakerOpen",
        {OPEN: "1x30"},
        20,
        CODE | {"state": "open"},
        "code: speculation has been off for 15 minutes",
    ),
    Scene("DraftgateBreakerFlaps", {OPENED: "0+1x60"}, 60, CODE, "code: the breaker opened 60 times in an hour"),
    Scene(
        "DraftgateReadBackDiffers",
        {IN_FORCE: "1x5 0x10"},
        10,
        AT,
        "The engine has other policies in force than control wants",
    ),
    Scene("DraftgateErrors", {ERRORS: "0+6x40"}, 30, AT | {"kind": "source"}, "source fails at many looks"),
    Scene(
        "DraftgateTraceDrops",
        {DROPPED: "0x5 1x20"},
        10,
        AT | {"reason": "lagged"},
        "The engine recorded some requests not whole: lagged",
    ),
]

HEALTHY = {
    **judged(CODE, 5, 4.9),
    **judged(JSON, 5, 4.95),
    **drafted("0+1000x420", "0+600x420"),
    SPEEDUP: "1.4x420",
    ON: "1x420",
    UP: "1x420",
    LOOKED: "0+60x420",
    SEEN: "0+60x420",
    CONTROLS: "1x420",
    OPEN: "0x420",
    OPENED: "0x420",
    IN_FORCE: "1x420",
    ERRORS: "0x420",
    DROPPED: "3x420",
}

QUIET = [
    *(Scene(name, HEALTHY, minute) for name in ALL for minute in (30, 100, 400)),
    Scene("DraftgateCodeValidityLow", judged(CODE, 1, 0.5), 90),  # 60 an hour are too few to say
    Scene("DraftgateCodeValidityLow", judged(CODE, 5, 4.7), 90),  # 94% of 300: below, but not surely
    Scene("DraftgateCodeValidityLow", judged(JSON, 5, 4.5), 90),  # has a rule of its own
    Scene("DraftgateStructuredValidityLow", judged(CODE, 5, 4.5), 90),
    Scene("DraftgateStructuredValidityLow", judged(JSON, 4, 3.2), 90),  # 240 are too few
    Scene("DraftgateAcceptanceCollapse", drafted("0+10x420", "0+8x360 2881+1x60"), 382),  # few were drafted
    Scene("DraftgateAcceptanceCollapse", drafted("0+1000x420", "0+800x360 288500+500x60"), 382),  # fell, not by half
    Scene("DraftgateNotPaying", {SPEEDUP: "0.9x30", ON: "0x30"}, 20),  # off already
    Scene("DraftgateNotPaying", {SPEEDUP: "0.9x10 1.1x3 0.9x10", ON: "1x30"}, 20),  # now and then
    Scene("DraftgateControllerDown", {UP: "1x10 0x1 1x10"}, 12),  # one scrape was lost
    Scene("DraftgateMetricsStale", {SEEN: "0x20", CONTROLS: "0x20"}, 10),  # it stands by
    Scene("DraftgateNobodyControls", {CONTROLS: "0x20", at("draftgate_controls", AT | {"instance": "b"}): "1x20"}, 10),
    Scene("DraftgateBreakerOpen", {OPEN: "1x10 0x2 1x10"}, 20),  # a probe
    Scene("DraftgateBreakerFlaps", {OPENED: f"0x10 {FLAPS}x52"}, 62),  # as often as if it never closes
    Scene("DraftgateReadBackDiffers", {IN_FORCE: "1x5 0 1x10"}, 10),  # settling
    Scene("DraftgateErrors", {ERRORS: "0+1x40"}, 30),  # now and then
    Scene("DraftgateTraceDrops", {DROPPED: "5x5 0x20"}, 10),  # the engine restarted
]


def promtool_test(scene: Scene) -> Mapping[str, Any]:
    expected = []
    if scene.fires is not None:
        alert = ALL[scene.alert]
        expected = [
            {
                "exp_labels": {**scene.fires, "severity": alert.severity},
                "exp_annotations": {"summary": scene.summary, "description": alert.description},
            }
        ]
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in scene.series.items()],
        "alert_rule_test": [
            {"eval_time": f"{scene.minute}m", "alertname": scene.alert, "exp_alerts": expected},
        ],
    }


def run(promtool: str, folder: Path, scenes: list[Scene]) -> "subprocess.CompletedProcess[str]":
    (folder / "alerts.yml").write_bytes(rules(Choices()))
    (folder / "test.yml").write_text(
        yaml.safe_dump({"rule_files": ["alerts.yml"], "tests": [promtool_test(scene) for scene in scenes]})
    )
    words = [promtool, "test", "rules", "test.yml"]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)


def test_the_written_rules_are_current() -> None:
    assert WRITTEN.read_bytes() == rules(Choices()), "run: draftgate observe alerts --out deploy/prometheus/alerts.yml"


def test_promtool_accepts_the_rules(promtool: str) -> None:
    done = subprocess.run([promtool, "check", "rules", "--lint-fatal", str(WRITTEN)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(ALL)} rules found" in done.stdout


def test_every_alert_fires_in_its_incident(promtool: str, tmp_path: Path) -> None:
    assert {scene.alert for scene in INCIDENTS} == ALL.keys()
    done = run(promtool, tmp_path, INCIDENTS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_alert_fires_without_one(promtool: str, tmp_path: Path) -> None:
    done = run(promtool, tmp_path, QUIET)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_quiet_scene_with_an_incident_in_it_fails(promtool: str, tmp_path: Path) -> None:
    """The way of testing can fail."""
    wrong = [Scene(scene.alert, scene.series, scene.minute) for scene in INCIDENTS]
    for scene in wrong:
        assert run(promtool, tmp_path, [scene]).returncode == 1, scene.alert


def test_every_metric_and_label_is_in_the_table() -> None:
    for alert in ALL.values():
        names = set(re.findall(r"draftgate_\w+", alert.expr))
        assert names or alert.name == "DraftgateControllerDown"
        labels = {label for name in names for label in metric(name).labels} | set(TARGET)
        said = set(re.findall(r"\$labels\.(\w+)", alert.summary + alert.description))
        assert said <= labels


def test_a_breaker_that_never_closes_does_not_flap() -> None:
    """Not even if every probe fails at once."""
    breaker, now_s, openings = Breaker(replace(Limits(), jitter=0.0), random.Random(0)), 0.0, 0
    while now_s < 3600:
        breaker.open("", now_s)
        openings, now_s = openings + 1, breaker.until_s
        breaker.wait(now_s)
    assert 1 < openings < FLAPS


def test_choices_reach_the_rules() -> None:
    made = rules(Choices(job="spec", structured="tools-.*", code_floor=0.9)).decode()
    assert 'up{job="spec"}' in made
    assert 'workload=~"tools-.*"' in made
    assert "fewer than 90% of outputs" in made


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"code_floor": 1.0}, "code_floor must be above 0.5 and below 1"),
        ({"structured_floor": float("nan")}, "structured_floor"),
        ({"job": 'a"} or vector(1) or up{job="'}, "job must be printable text without quotes"),
        ({"structured": "a\nb"}, "structured must be printable"),
        ({"job": ""}, "job must be printable"),
    ],
)
def test_wrong_choices_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Choices(**fields)


def test_promtool_accepts_the_scrape_configuration(promtool: str) -> None:
    config = WRITTEN.with_name("prometheus.yml")
    done = subprocess.run([promtool, "check", "config", str(config)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert yaml.safe_load(config.read_text())["scrape_configs"][0]["job_name"] == Choices().job
