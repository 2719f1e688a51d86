"""Charts as inline SVG: drawn without pyplot, cleaned so that a page holds many, legible in light and dark."""

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from draftgate.errors import require

__all__ = ["acceptance_by_position", "acceptance_shares", "break_even", "pareto", "speedups", "step_cost"]

Row = Mapping[str, Any]

_INK = "#010203"  # stands for the page's text colour
_LOSSLESS, _LOSSY, _THIRD, _FOURTH, _GREY = "#3b82c4", "#c8711f", "#2f9570", "#9a6bc4", "#8a8f98"
_SERIES = (_LOSSLESS, _LOSSY, _THIRD, _FOURTH)
_WIDE_IN, _HALF_IN = 9.6, 4.8
_RATIOS = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
_STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # names come from users: a "$" in one is a dollar sign
    "text.usetex": False,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _GREY,
    "grid.alpha": 0.22,
    "xtick.color": _GREY,
    "ytick.color": _GREY,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "font.size": 9.0,
    "legend.frameon": False,
    "lines.markersize": 5.0,
}
_LEGEND = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "ncols": 4, "borderaxespad": 0.2, "handletextpad": 0.4}


def speedups(chart: str, label: str, arms: Sequence[Row]) -> str:
    """Measured speedups with their intervals, one row an arm, and what replay had predicted; a log scale of ratios.

    Args:
        chart: name of the chart, another for each one on a page.
        label: what a screen reader says.
        arms: arm objects of the result.
    """

    def plot(axes: Any) -> None:
        shown = [1.0]
        for y, arm in enumerate(arms):
            speed, predicted = arm["speedup"], (arm["predicted"] or {})
            colour = _LOSSLESS if arm["lossless"] else _LOSSY
            shown += _range_x(axes, y, speed, marker="o", color=colour)
            replayed = predicted.get("speedup_interval") or {"estimate": predicted.get("speedup")}
            shown += _range_x(axes, y + 0.28, replayed, marker="D", color=_GREY, mfc="none", markersize=4)
        axes.axvline(1.0, color=_INK, linewidth=1, linestyle=(0, (4, 3)))
        for name, style in (
            ("measured, lossless", {"color": _LOSSLESS, "marker": "o"}),
            ("measured, lossy", {"color": _LOSSY, "marker": "o"}),
            ("replayed", {"color": _GREY, "marker": "D", "mfc": "none", "markersize": 4}),
        ):
            axes.plot([], [], label=name, linestyle="none", **style)
        axes.set_xscale("log")
        axes.set_xlim(min(shown) / 1.08, max(shown) * 1.08)
        ticks = [t for t in _RATIOS if min(shown) / 1.08 <= t <= max(shown) * 1.08]
        axes.set_xticks(ticks, labels=[f"{t:g}x" for t in ticks])
        axes.minorticks_off()
        axes.set_yticks(range(len(arms)), labels=[_plain(arm["arm"]) for arm in arms])
        axes.set_ylim(len(arms) - 0.4, -0.6)
        axes.set_xlabel("speedup over no speculation")
        axes.legend(**_LEGEND)

    return _draw(chart, label, (_WIDE_IN, 0.9 + 0.36 * len(arms)), plot)


def pareto(chart: str, label: str, front: Sequence[Row], arms: Sequence[Row], limit_nats: float) -> str:
    """Replayed speedup against log-probability given up: the front of the search, and the arms that were run.

    Args:
        front: points of the result's front.
        arms: arm objects; those without a prediction are left out.
        limit_nats: what the lossy candidate may give up.
    """
    ran = [a["predicted"] | {"lossless": a["lossless"]} for a in arms if a["predicted"]]
    points = [p for p in (*front, *ran) if p["speedup"] is not None]

    def plot(axes: Any) -> None:
        for rows, marker, size, said in ((front, "o", 22, "front"), (ran, "s", 42, "run live")):
            for lossless, colour in ((True, _LOSSLESS), (False, _LOSSY)):
                here = [p for p in rows if p["lossless"] is lossless and p["speedup"] is not None]
                if not here:
                    continue
                axes.scatter(
                    [p["given_up_nats"] for p in here],
                    [p["speedup"] for p in here],
                    s=size,
                    marker=marker,
                    edgecolors=colour,
                    facecolors=colour if marker == "o" else "none",
                    label=f"{said}, {'lossless' if lossless else 'lossy'}",
                    clip_on=False,
                    zorder=3,
                )
        axes.axhline(1.0, color=_INK, linewidth=1, linestyle=(0, (4, 3)))
        axes.axvline(limit_nats, color=_GREY, linewidth=1, linestyle=(0, (1, 2)))
        axes.set_xscale("symlog", linthresh=1e-3)
        most = 1.3 * max([limit_nats, *(p["given_up_nats"] for p in points)])
        axes.set_xlim(-1e-4, most)
        ticks = [t for t in (0.0, 1e-3, 1e-2, 1e-1, 1.0, 10.0) if t <= most]
        axes.set_xticks(ticks, labels=[f"{t:g}" for t in ticks])
        axes.minorticks_off()
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}x")
        axes.set_xlabel("log-probability given up, nats per committed token")
        axes.set_ylabel("replayed speedup")
        if points:
            axes.legend(**_LEGEND)

    return _draw(chart, label, (_WIDE_IN, 3.1), plot)


def acceptance_by_position(chart: str, label: str, positions: Sequence[Row]) -> str:
    """Survival and conditional acceptance of each draft position, with intervals."""

    def plot(axes: Any) -> None:
        for shift, kind, colour in ((-0.08, "survival", _LOSSLESS), (0.08, "conditional", _LOSSY)):
            _shares(axes, [p["position"] + shift for p in positions], [p[kind] for p in positions], colour, kind)
        axes.set_xticks([p["position"] for p in positions])
        axes.set_xlabel("position in the draft")
        axes.legend(**_LEGEND)

    return _draw(chart, label, (_HALF_IN, 2.7), plot)


def acceptance_shares(chart: str, label: str, rows: Sequence[Row], names: Sequence[str], axis: str) -> str:
    """Acceptance of groups of tokens, with intervals.

    Args:
        rows: shares with rate, low, high and n.
        names: what each row is called.
        axis: what the names are.
    """

    def plot(axes: Any) -> None:
        _shares(axes, list(range(len(rows))), rows, _LOSSLESS)
        crowded = {"rotation": 25, "ha": "right", "rotation_mode": "anchor"} if sum(map(len, names)) > 45 else {}
        axes.set_xticks(range(len(rows)), labels=[_plain(name) for name in names], **crowded)
        axes.set_xlim(-0.5, len(rows) - 0.5)
        axes.set_xlabel(axis)

    return _draw(chart, label, (_HALF_IN, 2.7), plot)


def step_cost(chart: str, label: str, curves: Sequence[Row]) -> str:
    """Seconds of a decode relative to one of a single token, by tokens a sequence, one line a batch size."""

    def plot(axes: Any) -> None:
        for i, curve in enumerate(curves):
            relative = [s / curve["seconds"][0] for s in curve["seconds"]]
            axes.errorbar(
                range(1, len(relative) + 1),
                relative,
                yerr=[r * e for r, e in zip(relative, curve["error"], strict=True)],
                fmt="o-",
                color=_SERIES[i % len(_SERIES)],
                markersize=3.5,
                linewidth=1.2,
                elinewidth=1,
                label=f"batch {curve['batch']}",
            )
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}x")
        axes.set_xlabel("tokens per sequence in one decode")
        axes.legend(**_LEGEND)

    return _draw(chart, label, (_HALF_IN, 2.9), plot)


def break_even(chart: str, label: str, maxima: Sequence[Row]) -> str:
    """Break-even acceptance by draft length, one line a batch size; a gap where even full acceptance loses."""

    def plot(axes: Any) -> None:
        for i, batch in enumerate(sorted({m["batch"] for m in maxima})):
            here = [m for m in maxima if m["batch"] == batch]
            axes.plot(
                [m["k"] for m in here],
                [float("nan") if m["break_even"] is None else m["break_even"] for m in here],
                "o-",
                color=_SERIES[i % len(_SERIES)],
                markersize=3.5,
                linewidth=1.2,
                label=f"batch {batch}",
            )
        _percent_axis(axes)
        axes.set_xlabel("draft length k")
        axes.legend(**_LEGEND)

    return _draw(chart, label, (_HALF_IN, 2.9), plot)


def _range_x(axes: Any, y: float, value: Row, **style: Any) -> list[float]:
    """A point with its interval, if there is one; returns the numbers that were drawn."""
    middle, low, high = value["estimate"], value.get("low"), value.get("high")
    if middle is None:
        return []
    if low is None or high is None:
        axes.plot(middle, y, linestyle="none", **style)
        return [middle]
    axes.errorbar(middle, y, xerr=[[middle - low], [high - middle]], **style)
    return [middle, low, high]


def _shares(axes: Any, x: Sequence[float], rows: Sequence[Row], colour: str, name: str | None = None) -> None:
    known = [
        (at, r["rate"], r["rate"] - r["low"], r["high"] - r["rate"]) for at, r in zip(x, rows, strict=True) if r["n"]
    ]
    at, rate, below, above = zip(*known, strict=True) if known else ((), (), (), ())
    axes.errorbar(at, rate, yerr=[below, above], fmt="o", color=colour, elinewidth=1.6, label=name)
    _percent_axis(axes)


def _percent_axis(axes: Any) -> None:
    axes.set_ylim(-0.03, 1.03)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], labels=["0%", "25%", "50%", "75%", "100%"])


def _plain(name: str, most: int = 34) -> str:
    """A name on one line, short enough for an axis, without characters that XML cannot hold."""
    shown = "".join(c if c.isprintable() else "\ufffd" for c in name)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def _draw(chart: str, label: str, size_in: tuple[float, float], plot: Callable[[Any], None]) -> str:
    matplotlib, figures = require("matplotlib", "tune"), require("matplotlib.figure", "tune")
    data = io.BytesIO()
    # Ids in the SVG are hashes: salted by the chart's name they are the same each time and differ between charts.
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": chart}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the reader's fonts draw the text, not matplotlib's
        figure = figures.Figure(size_in, layout="constrained")
        plot(figure.subplots())
        figure.savefig(data, format="svg", transparent=True, metadata={"Date": None})
    return _inline(data.getvalue(), label)


def _inline(svg: bytes, label: str) -> str:
    """The SVG for the body of a page whose security policy forbids style attributes."""
    root = ElementTree.fromstring(svg)
    referred = set(re.findall(r"#([\w-]+)", svg.decode()))
    for element in root.iter():
        for child in [c for c in element if c.tag.endswith(("}metadata", "}style"))]:
            element.remove(child)
        element.tag = element.tag.rpartition("}")[2]
        given = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
        given |= _presentation(given.pop("style", ""))
        element.attrib = {k: "currentColor" if v == _INK else v for k, v in given.items() if k != "id" or v in referred}
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.attrib |= {"role": "img", "aria-label": _plain(label, 400), "class": "chart"}
    return ElementTree.tostring(root, encoding="unicode")


def _presentation(style: str) -> dict[str, str]:
    """CSS declarations as SVG attributes; of a font only the size, because the page chooses the family."""
    found = dict(re.findall(r"([\w-]+):\s*([^;]+)", style))
    found.pop("font-family", None)
    if (font := found.pop("font", None)) and (size := re.search(r"[\d.]+px", font)):  # how matplotlib < 3.10 writes it
        found["font-size"] = size[0]
    return found
