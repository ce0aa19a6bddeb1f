# SPDX-License-Identifier: Apache-2.0
"""What the plots share: figures, axes, colours. Without matplotlib, MISSING says so."""

from __future__ import annotations

from typing import Any, Callable

try:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import FuncFormatter

    MISSING = ""
except ImportError as error:
    MISSING = f"no plots: {error} (Debian: apt install python3-matplotlib)"

COLORS = ("#0b6e99", "#d1495b", "#3c896d", "#7d5ba6", "#e08e0b", "#5c6b73", "#8a5a44", "#1b998b")
GREY = "#8c8c8c"


def tokens_text(t: float, _: Any = None) -> str:
    t = round(t)
    return f"{t >> 20}M" if t >= 1 << 20 and t % (1 << 20) == 0 else f"{t >> 10}k" if t >= 1024 else str(t)


def new(title: str, panels: int = 1, width: float = 7.2, height: float = 4.4) -> tuple[Any, list[Any]]:
    figure, axes = plt.subplots(
        1, panels, figsize=(width if panels == 1 else 5.4 * panels, height), squeeze=False, layout="constrained"
    )
    figure.suptitle(title, fontsize=11)
    for axis in axes[0]:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(True, which="major", color="#e6e6e6", linewidth=0.7)
        axis.set_axisbelow(True)
        axis.tick_params(labelsize=8)
    return figure, list(axes[0])


def axis_of_powers(axis: Any, values: Any, text: Callable[..., str] = tokens_text) -> None:
    values = sorted(set(values))
    axis.set_xscale("log", base=2)
    axis.set_xticks(values if len(values) <= 11 else values[::2])
    axis.xaxis.set_major_formatter(FuncFormatter(text))
    axis.minorticks_off()


def log_y(axis: Any) -> None:
    """Labels 1, 2 and 5 on an axis of few decades."""
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    named = "25" if high < 200 * low else ""
    axis.yaxis.set_minor_formatter(FuncFormatter(lambda y, _: f"{y:g}" if f"{y:.0e}"[0] in named else ""))
    axis.tick_params(which="minor", labelsize=7)


def from_zero(axis: Any) -> None:
    axis.set_ylim(0, 1.12 * axis.get_ylim()[1])


def legend(axis: Any) -> None:
    """Places the legend below the axis."""
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2)


def finish(axis: Any, x: str, y: str, title: str = "") -> None:
    axis.set_xlabel(x, fontsize=9)
    axis.set_ylabel(y, fontsize=9)
    if title:
        axis.set_title(title, fontsize=9)
    legend(axis)
