import json
from pathlib import Path
from typing import Any

import pytest

from draftgate.engines.speculators import policy_of
from draftgate.errors import ConfigError, ModelError
from draftgate.policy.length import Fixed


def checkpoint(folder: Path, **method: Any) -> Path:
    """A config.json of the shape that speculators 0.9 writes."""
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5} | method],
            "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "some/verifier"},
        },
    }
    path = folder / "head"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("method", [{}, {"verifier_accept_k": 1, "accept_tolerance": 2.0}, {"verifier_accept_k": 4}])
def test_the_top_token_only_is_exact_match(tmp_path: Path, method: dict[str, Any]) -> None:
    policy, notes = policy_of(checkpoint(tmp_path, **method))
    assert (policy.name, policy.rule, policy.length, notes) == ("head", "exact", Fixed(5), ())


def test_a_tolerance_in_log_likelihood_is_a_share_of_the_top_probability(tmp_path: Path) -> None:
    policy, notes = policy_of(
        checkpoint(tmp_path, speculative_tokens=3, verifier_accept_k=4, accept_tolerance=0.6931471805599453)
    )
    assert (policy.rule, dict(policy.params), policy.length) == ("cascade", {"alpha": 0.5}, Fixed(3))
    assert "verifier_accept_k = 4 is not kept" in notes[0]


@pytest.mark.parametrize(
    ("method", "error", "message"),
    [
        ({"speculative_tokens": 0}, ConfigError, "at least 1"),
        ({"accept_tolerance": "much"}, ConfigError, "accept_tolerance must be a number but got 'much'"),
        ({"proposal_type": "gredy"}, ModelError, "did you mean 'gredy'"),
    ],
)
def test_bad_settings_name_the_file(tmp_path: Path, method: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        policy_of(checkpoint(tmp_path, **method))
    assert "config.json" in str(raised.value)


@pytest.mark.parametrize("text", [None, "[]", "{", '{"speculators_config": {}}', "[" * 100_000])
def test_what_is_no_checkpoint(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"config\.json"):
        policy_of(tmp_path)
