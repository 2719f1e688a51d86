import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftgate.control.fetch import SourceError
from draftgate.control.setting import Setting
from draftgate.control.tail import FileSource


def request(i: int, **fields: Any) -> dict[str, Any]:
    whole = {
        "id": f"r{i}", "workload": "code", "policy": "mine", "end_s": 1000.0 + i, "steps": 10, "covered": 8,
        "drafted": 24, "accepted": 12, "committed": 22, "kept": [7, 4, 1], "seconds": 0.2, "batch": 2.0, "valid": True,
    }  # fmt: skip
    return whole | fields


def append(path: Path, *lines: object) -> None:
    with path.open("a") as file:
        file.writelines(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "requests.jsonl"
    path.write_text("")
    return path


def source(path: Path, size: int = 4, now_s: float = 0.0, from_start: bool = False) -> FileSource:
    return FileSource(path, size=size, from_start=from_start, clock=lambda: now_s)


def test_requests_become_windows_by_workload_and_policy(path: Path) -> None:
    s = source(path)
    append(path, *[request(i, workload="code" if i % 2 else "chat") for i in range(8)])
    windows = s.poll()
    assert [(w.workload, w.policy, w.requests) for w in windows] == [("chat", "mine", 4), ("code", "mine", 4)]
    w = windows[0]
    assert w.flaw() is None
    assert (w.kept, w.reached, w.offered) == ((28, 16, 4), (32, 28, 16), (32, 32, 32))
    assert (w.judged, w.valid, w.batch, w.seconds) == (4, 4, 2.0, pytest.approx(0.8))
    assert s.poll() == []


def test_what_the_file_held_before_is_passed_over_unless_asked_for(path: Path) -> None:
    append(path, *[request(i) for i in range(4)])
    assert source(path).poll() == []
    assert len(source(path, from_start=True).poll()) == 1


def test_windows_pass_as_they_are(path: Path, plant: Any) -> None:
    s = source(path)
    windows = [plant().window(Setting(True, None, 3, None)) for _ in range(3)]
    append(path, *[w.to_mapping() for w in windows])
    assert s.poll() == windows


def test_a_workload_may_be_called_requests(path: Path) -> None:
    s = source(path, size=1)
    append(path, request(1, workload="requests"))
    assert [w.workload for w in s.poll()] == ["requests"]


@given(st.lists(st.lists(st.integers(0, 50), max_size=4), min_size=1, max_size=6), st.booleans(), st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_positions_add_up_whatever_their_number(
    path: Path, drafts: list[list[int]], offers: bool, reaches: bool
) -> None:
    """Requests with drafts of different lengths, with and without what was offered and reached."""
    rows = []
    for i, kept in enumerate(drafts):
        given = {"offered": [60] * len(kept)} if offers and i % 2 else {}
        given |= {"reached": [55] * len(kept)} if reaches and i % 3 else {}
        rows.append(request(i, covered=70, kept=kept, **given))
    path.write_text("")
    append(path, *rows)
    (window,) = source(path, size=len(rows), from_start=True).poll()
    most = max(map(len, drafts))
    for name, default in (("kept", None), ("offered", lambda r, j: 70), ("reached", lambda r, j: [70, *r["kept"]][j])):
        sums = [sum(r.get(name, [default(r, i) for i in range(j + 1)] if default else [])[j] for r in rows
                    if len(r["kept"]) > j) for j in range(most)]  # fmt: skip
        assert list(getattr(window, name)) == sums


def test_a_line_cut_by_a_writer_is_read_once_whole(path: Path) -> None:
    s = source(path, size=1)
    line = json.dumps(request(1)) + "\n"
    append(path, line[:50])
    assert s.poll() == []
    append(path, line[50:])
    assert len(s.poll()) == 1
    assert s.left_out is None


def test_a_replaced_or_cut_file_is_read_from_its_start(path: Path, tmp_path: Path) -> None:
    s = source(path, size=1)
    append(path, request(1), request(2))
    assert len(s.poll()) == 2
    other = tmp_path / "other"
    append(other, request(3))
    other.replace(path)
    assert len(s.poll()) == 1
    path.write_text("")
    assert s.poll() == []
    append(path, request(4))
    assert len(s.poll()) == 1


def test_a_missing_file_is_a_lost_source_until_it_comes(path: Path) -> None:
    path.unlink()
    s = source(path, size=1)
    with pytest.raises(SourceError, match="cannot be read"):
        s.poll()
    append(path, request(1))
    assert len(s.poll()) == 1


def test_requests_that_stop_coming_still_make_a_window(path: Path) -> None:
    append(path, request(0))
    s = source(path, now_s=1060.0, from_start=True)
    assert [w.requests for w in s.poll()] == [1]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{\n", "truncated"),
        ("[]\n", "Expected `object`, got `array`"),
        (request(1, stepz=1), "did you mean 'steps'"),
        ({"id": 1}, "missing required field `end_s`"),
        (request(1, steps=-1), ">= 0"),
        (request(1, steps=True), "Expected `int`, got `bool`"),
        (request(1, steps=1 << 50), "Expected `int` <"),
        (request(1, kept="x"), "Expected `array`, got `str`"),
        (request(1, kept=[1, 1.5, 0]), "$.kept"),
        (request(1, offered=[1]), "equally long"),
        (request(1, end_s=float("nan")), "invalid"),
        (request(1, end_s=-1.0), "$.end_s"),
        (request(1, seconds="x"), "$.seconds"),
        (request(1, seconds=1e300), "$.seconds"),
        ("[" * 5000 + "\n", ""),
        ('"\\ud800"\n', ""),
        ({"requests": 1}, "missing"),
        ('[{"requests": 1}]\n', "must be a JSON object"),
    ],
)
def test_a_line_that_cannot_be_used_is_counted_and_the_others_are(path: Path, line: object, says: str) -> None:
    s = source(path, size=1)
    append(path, request(1), line, request(2))
    assert len(s.poll()) == 2
    assert (s.left_out or "").startswith(f"1 lines of {path}, the last as ")
    assert says in (s.left_out or "")
    s.poll()
    assert s.left_out is None


@given(st.lists(st.binary(max_size=40), max_size=10))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_bytes_raise(path: Path, lines: list[bytes]) -> None:
    path.write_bytes(b"\n".join(lines) + b"\n")
    source(path, from_start=True).poll()


def test_names_from_clients_do_not_fill_the_memory(path: Path) -> None:
    s = source(path, size=100)
    append(path, *[request(i, workload=f"w{i}") for i in range(500)])
    s.poll()
    assert len(s._makers) <= 64


def test_shadows_are_windows_of_their_own(path: Path) -> None:
    s = source(path, size=2)
    append(path, *[request(i, shadow=i % 2 == 1) for i in range(4)])
    assert [(w.shadow, w.requests) for w in s.poll()] == [(False, 2), (True, 2)]
