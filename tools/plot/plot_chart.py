#!/usr/bin/env python3
"""Draws a chart that a JSON object describes, as SVG or PNG, in colours that the colour-blind can tell apart.

usage: plot_chart.py CHART.json|- FIGURE.svg|FIGURE.png

  {"kind": "lines",                     lines with markers; or "stacked_bars"; or "dots", one in each named row; or "table"
   "title": "…",
   "note": "…",                         optional: small print below the title, such as what was assumed
   "x": {"label": "…", "scale": "log", "format": "count"},
   "y": {"label": "…"},                 scale: linear (default), log, log2; format: below
   "bars": ["ddp", "fsdp"],             stacked bars only: the names below the bars; x is optional then
   "series": [{"name": "…", "x": [1, 2], "y": [3, 4], "reference": true}],
                                        lines only: x, and reference for a thin dashed line to compare with;
                                        bars are stacked in the order of the series; dots have rows, x and texts
                                        instead, as many of each, below the series' name: {"name": "Steps",
                                        "rows": ["MLP"], "x": [1.9], "texts": ["1.9, at least 1.4"]}
   "limits": [{"name": "…", "y": 5}]}   optional: horizontal dashed lines; of dots, vertical ones at "x"

  {"kind": "table", "title": "…", "note": "…", "x": {"label": "…"}, "y": {"label": "…"},
   "rows": ["cat", "dog"], "columns": ["cat", "dog"], "values": [[9, 1], [2, 8]]}
                                        counts in cells, whose shade is the share of their row

Formats of an axis: plain (default), count (1 M), bytes (10^n B) and bytes2 (2^n B), seconds (10 ms), percent (of 1).
A log2 axis of x ticks at the points of the lines. Exit codes: 0, 1 where the figure cannot be written, 2 for a chart
that cannot be drawn, 3 where matplotlib is missing. The figure appears whole or not at all.
"""
import io
import json
import math
import os
import sys

FORMATS = {
    "plain": [(1, "")],
    "count": [(1, ""), (1e3, " K"), (1e6, " M"), (1e9, " B"), (1e12, " T")],
    "bytes": [(1, " B"), (1e3, " KB"), (1e6, " MB"), (1e9, " GB"), (1e12, " TB"), (1e15, " PB")],
    "bytes2": [(1, " B")] + [(1024.0**n, f" {unit}iB") for n, unit in enumerate("KMGTP", start=1)],
    "seconds": [(1e-9, " ns"), (1e-6, " µs"), (1e-3, " ms"), (1, " s"), (60, " min"), (3600, " h"), (86400, " days")],
    "percent": [(0.01, " %")],
}
# Okabe and Ito, "Color Universal Design" (2008), with Tol's wine for their yellow, which is pale on white. Lines differ in
# their markers too.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#882255"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]
HATCHES = [None, "///", "...", "xxx"]


def text_of(value, kind):
    """At most four digits, in the largest unit that is not above the number and in which they say it exactly."""
    if value == 0:
        return "0"
    units = [(size, unit) for size, unit in FORMATS[kind] if size <= abs(value) * (1 + 1e-9)] or FORMATS[kind][:1]
    exact = [(size, unit) for size, unit in units if math.isclose(float(f"{value / size:.4g}") * size, value, rel_tol=1e-9)]
    size, unit = max(exact or units)
    return f"{value / size:,.4g}{unit}" if abs(value / size) < 1e4 else f"{value / size:,.0f}{unit}"


def spread(points):
    """Those of the points whose labels have room beside each other on a log2 axis."""
    points = sorted(set(points))
    kept = points[:1]
    for point in points[1:]:
        if math.log2(point / kept[-1]) >= math.log2(points[-1] / points[0]) / 14:
            kept.append(point)
    return kept


def set_axis(axes, name, description, points=None):
    """Scale, label, grid and ticks of axis x or y. `points`: where a log2 axis may tick."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator
    axis, scale = getattr(axes, f"{name}axis"), description.get("scale", "linear")
    if scale != "linear":
        getattr(axes, f"set_{name}scale")("log", base=2 if scale == "log2" else 10)
        axis.set_minor_formatter(NullFormatter())
    if scale == "log":
        axis.set_major_locator(LogLocator(numticks=12))
    elif scale == "log2":
        axis.set_major_locator(FixedLocator(spread(points)) if points else LogLocator(base=2, numticks=12))
        axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: text_of(value, description.get("format", "plain"))))
    axis.set_label_text(description.get("label", ""))
    axis.grid(True, color="#dddddd", linewidth=0.8)


def draw_lines(axes, chart):
    for index, series in enumerate(chart["series"]):
        style = {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)], "linewidth": 2}
        if series.get("reference"):
            style = {"color": "#444444", "linestyle": "--", "linewidth": 1.4, "zorder": 1.5}
        axes.plot(series["x"], series["y"], label=series["name"], markersize=6, **style)
    set_axis(axes, "x", chart["x"], [x for series in chart["series"] for x in series["x"]])


def draw_bars(axes, chart):
    count = len(chart["bars"])
    bottom = [0.0] * count
    for index, series in enumerate(chart["series"]):
        axes.bar(range(count), series["y"], 0.6, bottom, label=series["name"], edgecolor="white", linewidth=0.8,
                 color=COLOURS[index % len(COLOURS)], hatch=HATCHES[index // len(COLOURS)])
        bottom = [a + b for a, b in zip(bottom, series["y"])]
    for place, total in enumerate(bottom):
        axes.annotate(text_of(total, chart["y"].get("format", "plain")), (place, total), (0, 3), fontsize=10,
                      textcoords="offset points", ha="center", va="bottom")
    crowded = max(len(str(name)) for name in chart["bars"]) * count > 70
    axes.set_xticks(range(count), chart["bars"], rotation=30 if crowded else 0,
                    ha="right" if crowded else "center", rotation_mode="anchor")
    axes.set_xlabel(chart.get("x", {}).get("label", ""))
    axes.set_ylim(0, max([*bottom, *(limit["y"] for limit in chart.get("limits", []))], default=1) * 1.1 or 1)


def finish(axes, chart):
    """What all kinds have: title, note, and no box."""
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    note = chart.get("note", "")
    axes.set_title(chart["title"], loc="left", fontsize=13, pad=14 + 13 * len(note.splitlines()))
    axes.annotate(note, (0, 1), (0, 10), xycoords="axes fraction", textcoords="offset points", fontsize=9,
                  color="#555555", va="bottom")


def draw_dots(chart):
    """A figure as high as its rows need: each series' name, then its rows, from top to bottom."""
    from matplotlib.figure import Figure
    lines = sum(len(series["rows"]) + 1 for series in chart["series"])
    figure = Figure(figsize=(9, 0.24 * lines + 1), dpi=120, facecolor="white")
    axes = figure.add_subplot()
    set_axis(axes, "x", chart["x"])
    names, headings = [], []
    for index, series in enumerate(chart["series"]):
        headings.append(len(names))
        names.append(series["name"])
        for row, x, text in zip(series["rows"], series["x"], series["texts"]):
            axes.plot([x], [len(names)], marker=MARKERS[index % len(MARKERS)], color=COLOURS[index % len(COLOURS)], markersize=6)
            axes.annotate(text, (x, len(names)), (7, 0), textcoords="offset points", fontsize=8, color="#333333", va="center",
                          bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6})
            names.append(row)
    for limit in chart.get("limits", []):
        axes.axvline(limit["x"], color="#444444", linestyle="--", linewidth=1.4)
        axes.annotate(limit["name"], (limit["x"], 1), (0, 2), xycoords=axes.get_xaxis_transform(), fontsize=8,
                      textcoords="offset points", color="#444444", ha="center", va="bottom")
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.tick_params(axis="y", length=0)
    for heading in headings:
        axes.get_yticklabels()[heading].set_fontweight("bold")
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.margins(x=0.18)
    return figure, axes


def draw_table(chart):
    """Cells as large as their numbers need; of many rows, without numbers."""
    from matplotlib.figure import Figure
    rows, columns = len(chart["rows"]), len(chart["columns"])
    numbered = max(rows, columns) <= 24
    side = 0.52 if numbered else 12 / max(rows, columns)
    figure = Figure(figsize=(side * columns + 1, side * rows + 1), dpi=120, facecolor="white")
    axes = figure.add_subplot()
    shares = [[value / (sum(row) or 1) for value in row] for row in chart["values"]]
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for y, row in enumerate(chart["values"] if numbered else []):
        for x, value in enumerate(row):
            if value:
                axes.annotate(text_of(value, "plain"), (x, y), fontsize=8, ha="center", va="center",
                              color="white" if shares[y][x] > 0.55 else "#333333")
    axes.set_xticks(range(columns), chart["columns"], fontsize=9, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(rows), chart["rows"], fontsize=9)
    axes.tick_params(length=0)
    axes.set_xlabel(chart.get("x", {}).get("label", ""))
    axes.set_ylabel(chart.get("y", {}).get("label", ""))
    axes.spines[["left", "bottom"]].set_visible(False)
    return figure, axes


def draw(chart):
    """The figure. The legend stands to the right, where it hides nothing."""
    from matplotlib.figure import Figure
    if chart["kind"] in ["table", "dots"]:
        figure, axes = (draw_table if chart["kind"] == "table" else draw_dots)(chart)
        finish(axes, chart)
        return figure
    figure = Figure(figsize=(9, 4.8), dpi=120, facecolor="white")
    axes = figure.add_subplot()
    bars = chart["kind"] == "stacked_bars"
    (draw_bars if bars else draw_lines)(axes, chart)
    set_axis(axes, "y", chart["y"])
    axes.xaxis.grid(not bars)
    for limit in chart.get("limits", []):
        axes.axhline(limit["y"], color="#444444", linestyle="--", linewidth=1.4, label=limit["name"])
    finish(axes, chart)
    handles, labels = axes.get_legend_handles_labels()
    if bars:  # in the order in which they are seen, the topmost first
        handles, labels = handles[::-1], labels[::-1]
    axes.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.02, 1), borderaxespad=0, frameon=False)
    return figure


def render(chart, kind):
    """The file's bytes, the same for the same chart."""
    import matplotlib
    settings = {"svg.hashsalt": "tessera", "svg.fonttype": "none", "font.size": 11, "hatch.linewidth": 0.8,
                "hatch.color": "white"}
    with matplotlib.rc_context(settings):
        memory = io.BytesIO()
        draw(chart).savefig(memory, format=kind, bbox_inches="tight", pad_inches=0.15,
                            metadata={"Date": None} if kind == "svg" else None)
    return memory.getvalue()


def write(path, content):
    part = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            file.write(content)
        os.replace(part, path)
    finally:
        if os.path.exists(part):
            os.remove(part)


def main(arguments):
    if arguments in (["--help"], ["-h"]):
        print(__doc__.strip())
        return 0
    kind = os.path.splitext(arguments[-1])[1][1:] if len(arguments) == 2 else ""
    if kind not in ("svg", "png"):
        print("plot_chart.py: takes CHART.json (or -) and FIGURE.svg or FIGURE.png; see --help", file=sys.stderr)
        return 2
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        print(f"drawing needs matplotlib, which {sys.executable} lacks ({error}): install python3-matplotlib (Debian: "
              "apt-get install python3-matplotlib)", file=sys.stderr)
        return 3
    try:
        with (sys.stdin if arguments[0] == "-" else open(arguments[0], encoding="utf-8")) as file:
            picture = render(json.load(file), kind)
    except (OSError, LookupError, TypeError, ValueError) as error:
        print(f"the chart cannot be drawn: {error!r}", file=sys.stderr)
        return 2
    try:
        write(arguments[1], picture)
    except OSError as error:
        print(f"cannot write {arguments[1]}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
