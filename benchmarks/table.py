"""Results as tables for people, and as bars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import Row
from benchmarks.results import Results, split

SCALES = {"bytes": (1e6, "MB"), "s": (1.0, "s"), "samples/s": (1.0, "samples/s")}
INK, PALE = "#c2410c", "#94a3b8"


def tables(results: Results, subjects: Sequence[str]) -> str:
    """Return a table for each group of rows: subjects down, rows across."""
    groups: dict[str, list[str]] = {}
    for row in results.units:
        if not row.partition(" ")[2].startswith("check"):
            groups.setdefault(_group(row), []).append(row)
    return "\n".join(_table(results, title, rows, subjects) for title, rows in groups.items())


def _group(row: str) -> str:
    """Return the title of a row's table: `img convert`, or `img read w0`."""
    words = row.split()
    return " ".join(words[:2] if words[1] == "convert" else words[:3])


def _table(results: Results, title: str, rows: list[str], subjects: Sequence[str]) -> str:
    found = {(row.workload, row.subject): row for row in results.rows(subjects)}
    heads = [title, *(_head(row.removeprefix(title), results.units[row]) for row in rows)]
    lines = []
    for subject in subjects:
        cells = [found.get((row, subject)) for row in rows]
        faults = [cell.status for cell in cells if cell is not None and cell.value is None]
        if faults:
            lines.append([subject, faults[0]])
        elif any(cells):
            lines.append([subject, *(_cell(cell) for cell in cells)])
    whole = [line for line in [heads, *lines] if len(line) == len(heads)]
    widths = [max(len(line[i]) for line in whole) for i in range(len(heads))]
    widths[0] = max(len(line[0]) for line in [heads, *lines])
    return "\n".join(_line(line, widths) for line in [heads, *lines]) + "\n"


def _head(measure: str, unit: str) -> str:
    return f"{measure} {SCALES.get(unit, (1.0, unit))[1]}".strip()


def _line(cells: list[str], widths: list[int]) -> str:
    first, *others = cells
    if len(cells) < len(widths):
        return f"{first:{widths[0]}}  {others[0]}"
    padded = [f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True)]
    return "  ".join([f"{first:{widths[0]}}", *padded])


def _cell(row: Row | None) -> str:
    if row is None or row.value is None:
        return "–"
    scale = SCALES.get(row.unit, (1.0, row.unit))[0]
    value = _number(row.value / scale)
    if row.low is None or row.high is None or row.runs == 1:
        return value
    return f"{value} ({_number(row.low / scale)}–{_number(row.high / scale)})"


def _number(value: float) -> str:
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def ratio_table(ratios: Sequence[Row]) -> str:
    """Return our best format over each peer: rows down, peers across."""
    peers = list(dict.fromkeys(row.subject.partition(" / ")[2] for row in ratios))
    lines = [["ours / peer", *peers]]
    for name in dict.fromkeys(row.workload for row in ratios):
        own = [row for row in ratios if row.workload == name]
        found = {row.subject.partition(" / ")[2]: row.value for row in own}
        ours = own[0].subject.partition(" / ")[0]
        values = [found.get(peer) for peer in peers]
        lines.append(
            [
                f"{name.removesuffix(' ratio')} ({ours})",
                *("–" if v is None else f"{v:.2f}" for v in values),
            ]
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(_line(line, widths) for line in lines) + "\n"


def plot(results: Results, subjects: Sequence[str], path: Path, caption: str) -> None:
    """Draw conversions and whole epochs as bars, the greatest above; ours stand out."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [row for row in results.rated() if "convert" in row or row.endswith("epoch")]
    columns = min(3, len(rows)) or 1
    height = -(-len(rows) // columns) or 1
    figure = Figure(figsize=(5.2 * columns, 3.4 * height + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    for number, row in enumerate(rows):
        axes = figure.add_subplot(height, columns, number + 1)
        axes.set_title(f"{row}, {results.units[row]}", fontsize=10)
        _bars(axes, results.beside(row, subjects))
    figure.suptitle(caption, fontsize=9)
    figure.savefig(path, dpi=130)


def _bars(axes: Any, rows: Sequence[Row]) -> None:
    """Draw medians, and from the least to the greatest value a line."""
    ours, _peers = split([row.subject for row in rows])
    values = [row.value or 0 for row in rows]
    below = [value - (row.low or value) for value, row in zip(values, rows, strict=True)]
    above = [(row.high or value) - value for value, row in zip(values, rows, strict=True)]
    colours = [INK if row.subject in ours else PALE for row in rows]
    axes.barh([row.subject for row in rows], values, xerr=[below, above], color=colours)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.locator_params(axis="x", nbins=5)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
