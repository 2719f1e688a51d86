"""The whole job on vLLM, by command line, on a tiny model: trace, replay, proof, recommendation."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("vllm")

from draftgate.cli import main
from draftgate.experiment.offline import replay
from draftgate.policy.file import load
from draftgate.policy.length import Fixed
from draftgate.trace.store import TraceStore

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM and numba warn of their own future

VERBS = ("walk", "run", "eat", "sing", "read", "write", "draw", "swim", "climb")


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("workload") / "verbs.jsonl"
    rows = [{"id": v, "prompt": f"I {v}, you {v}, we {v}, they {v}. I {v}, you", "max_tokens": 24} for v in VERBS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def run(tiny_dir: Path, workload: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], tuple[int, Path]]:
    """Runs `draftgate tune`; the second time it resumes."""
    out = tmp_path_factory.mktemp("run") / "out"
    words = ["tune", "--engine", "vllm", "--target", str(tiny_dir), "--draft", "ngram", "--context", "256"]
    words += ["--engine-args", json.dumps({"dtype": "float32", "enforce_eager": True})]
    words += ["-w", str(workload), "--budget", "20s", "--seed", "3", "--out", str(out), "--json"]

    def once() -> tuple[int, Path]:
        with pytest.raises(SystemExit) as ended:
            main(words)
        return int(ended.value.code or 0), out

    return once


def test_tune_on_vllm(run: Callable[[], tuple[int, Path]], capfd: pytest.CaptureFixture[str]) -> None:
    code, out = run()
    said = capfd.readouterr()
    assert code in (0, 3), said.err
    result = json.loads(said.out)  # and nothing else on stdout, whatever vLLM and its libraries print
    assert (result["setup"]["engine"], result["settings"]["record_k"]) == ("vllm", 7)

    found = result["workloads"][0]
    assert found["verdict"] in ("faster", "off", "inconclusive")
    by_name = {arm["arm"]: arm for arm in found["arms"]}
    assert by_name["none"]["coverage"] == 0
    assert by_name["engine-default"]["coverage"] > 0
    assert {arm["predicted"]["estimator"] for arm in found["arms"] if arm["predicted"]} <= {"renewal", "step", "blend"}
    assert all(isinstance(load(path).length, Fixed) for path in (out / "verbs" / "policies").iterdir())
    assert [row["k"] for row in found["fixed"]] == list(range(1, 8))
    assert all(row["tie"] for row in found["differences"])  # lossless arms write the baseline's text

    trace = out / "verbs" / "trace"
    steps = list(TraceStore(trace).steps())
    assert any(step.drafted_n for step in steps)
    assert all(step.drafted is not None and len(step.drafted) == step.drafted_n for step in steps)
    predicted = replay(trace, [load(Path(found["policy"]))], None)["arms"][0]
    assert predicted["acceptance_length"] >= 1
    assert (out / "report.html").exists()


def test_a_finished_run_is_not_measured_again(run: Callable[[], tuple[int, Path]], tiny_dir: Path) -> None:
    """With another engine that has the same setup: what was measured is on disk."""
    _, out = run()
    before = (out / "verbs" / "live.jsonl").read_bytes()
    cost = (out / "cost.json").read_bytes()
    run()
    assert (out / "verbs" / "live.jsonl").read_bytes() == before
    assert (out / "cost.json").read_bytes() == cost
