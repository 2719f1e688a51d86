import sys

import pytest

from draftgate.engines.select import Choice, open_engine
from draftgate.errors import ConfigError, EngineError, MissingExtraError, ModelError


@pytest.mark.parametrize(
    ("choice", "kind", "says"),
    [
        (Choice("vlm"), ConfigError, "no engine 'vlm'; did you mean 'vllm'"),
        (Choice(target="nowhere"), ModelError, "nowhere: no such file"),
        (Choice(url="http://127.0.0.1:1"), ConfigError, "--url is for --engine vllm"),
        (Choice(engine_args="{}"), ConfigError, "--engine-args is for --engine vllm"),
        (Choice("vllm"), ConfigError, "needs --target"),
        (Choice("vllm", url="http://127.0.0.1:1", draft="ngram"), ConfigError, "from its own start"),
        (Choice("vllm", url="http://127.0.0.1:1"), EngineError, "cannot be reached"),
        (Choice("vllm", url="127.0.0.1:1"), ConfigError, "must be an HTTP address"),
    ],
)
def test_what_cannot_be_opened(choice, kind, says):
    with pytest.raises(kind, match=says):
        open_engine(choice)


def test_without_vllm_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(MissingExtraError, match=r"draftgate\[vllm\]"):
        open_engine(Choice("vllm", "model"))
