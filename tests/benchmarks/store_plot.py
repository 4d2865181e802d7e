"""store.png: how fast each competitor reads random rows, beside `np.memmap`."""

from collections.abc import Mapping
from pathlib import Path

OURS, THEIRS, REFERENCE = "#0b6e4f", "#b8c0c8", "#6b7580"


def draw(speeds: Mapping[str, float], ours: str, reference: str, title: str, file: Path) -> None:
    """`speeds` are ratios to that of `reference`, which is 1."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    ranked = sorted(speeds.items(), key=lambda entry: entry[1])
    labels, values = [label for label, _ in ranked], [value for _, value in ranked]
    figure, axes = pyplot.subplots(figsize=(9, 0.36 * len(ranked) + 1.6), layout="constrained")
    colours = [{ours: OURS, reference: REFERENCE}.get(label, THEIRS) for label in labels]
    axes.axvline(1, color=REFERENCE, linewidth=1, linestyle=":", zorder=0)
    bars = axes.barh(labels, values, color=colours, height=0.72)
    beside = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"}
    axes.bar_label(bars, [f"{value:#.2g}" for value in values], padding=4, bbox=beside)
    axes.set_xscale("log")
    axes.set_xlim(min(values) / 2, 2 * max(values))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel(f"speed relative to {reference}; right is faster")
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    for label in axes.get_yticklabels():
        label.set(fontweight="bold" if label.get_text() == ours else "normal")
    figure.savefig(file, dpi=130, metadata={"Software": None})
    pyplot.close(figure)
