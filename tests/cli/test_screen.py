import io

import pytest
from rich.console import Console

from draftgate.cli.screen import Screen, arm_table, figure, percent

SPEED = {"estimate": 1.5, "low": 1.25, "high": 1.75, "n": 9, "how": "measured"}
FIGURES = {"tokens_per_s": 120.0, "acceptance_rate": 0.5, "acceptance_length": 2.5, "coverage": 1.0, "requests": 9}
JUDGED = {"valid": {"estimate": 0.75, "low": 0.5, "high": 0.9, "n": 9, "how": "measured"}, "quality": None}
NOTHING = {"estimate": None, "low": None, "high": None, "n": 0, "how": "measured"}
ARMS = [
    {"arm": "exact-k3", "lossless": True, "speedup": SPEED, **FIGURES, **JUDGED},
    {"arm": "[b]odd", "lossless": False, "speedup": NOTHING, **dict.fromkeys([*FIGURES, *JUDGED]), "requests": 0},
]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_elsewhere_than_a_terminal_progress_is_a_line_every_few_seconds(capsys):
    clock = Clock()
    with Screen(clock) as screen:
        screen.phase("chat: prove", 100.0)
        for _ in range(12):
            clock.now += 1.0
            screen.advance(1.0, "9 blocks")
        screen.phase("cost", None)
        clock.now += 9.0
        screen.advance(1.0)
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [
        "chat: prove",
        "chat: prove 5%, 95 s left, 9 blocks",
        "chat: prove 10%, 90 s left, 9 blocks",
        "cost",
        "cost",
    ]


def test_time_left_follows_the_pace_since_the_last_line(capsys):
    clock = Clock()
    screen = Screen(clock)
    screen.phase("p", 1000.0)
    screen.advance(500.0)  # what a resumed run finds done
    clock.now = 5.0
    screen.advance(0.0)
    clock.now = 10.0
    screen.advance(5.0)
    assert capsys.readouterr().err.splitlines()[-1] == "p 50%, 8 min left"


def test_a_line_is_not_wrapped(capsys):
    with Screen() as screen:
        screen.say("run directory " + "x" * 200)
    assert capsys.readouterr().err.count("\n") == 1


def rendered(width: int, terminal: bool = False) -> str:
    console = Console(
        file=io.StringIO(), width=width, force_terminal=terminal, color_system="standard" if terminal else None
    )
    console.print(arm_table("chat: use exact-k3", ARMS, "faster", "exact-k3"))
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 160])
def test_a_table_fits_80_columns_with_whole_names(width):
    lines = [line.rstrip() for line in rendered(width).splitlines()]
    assert max(map(len, lines)) <= 80
    assert " ".join(lines[2].split()) == "> exact-k3 1.50 1.25..1.75 - 120.0 50% 2.50 100% 75% 9"
    assert " ".join(lines[3].split()) == "[b]odd (lossy) - - - - - - - - 0"


def test_colour_is_for_terminals():
    assert "\x1b[1;32mchat" in rendered(80, terminal=True)
    assert "\x1b" not in rendered(80)


def test_what_was_not_measured_is_a_dash():
    assert (figure(None), percent(None), figure(0.0), percent(0.0)) == ("-", "-", "0.00", "0%")
