"""Plots of the experiments as SVG, by matplotlib. Text stays text and nothing varies from run to run, so that files are small and differ only with the
figures."""
import pathlib

MARKERS = "osD^v<>P"


def save(draw, path):
    """Writes what `draw` puts into a figure."""
    try:
        import matplotlib
    except ImportError:
        raise SystemExit("--plot and --docs need matplotlib: .venv/bin/pip install -r tools/requirements.txt") from None
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "spindle", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
    import matplotlib.pyplot as plt
    figure = plt.figure(figsize=(8, 3.8), layout="constrained")
    draw(figure)
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)


def lines(figure, series, x_label, y_label, title, log=False):
    """series: [(name, xs, ys)]"""
    axes = figure.add_subplot()
    for i, (name, xs, ys) in enumerate(series):
        # Later ones smaller, so that curves which coincide are both seen.
        axes.plot(xs, ys, marker=MARKERS[i % len(MARKERS)], markersize=max(3, 7 - 1.5 * i), linewidth=1.2, label=name)
    if log:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
    axes.set(xlabel=x_label, ylabel=y_label, title=title)
    figure.legend(loc="outside right upper")


def bars(figure, labels, series, y_label, title):
    """series: [(name, a height per label)]"""
    axes = figure.add_subplot()
    width = 0.8 / len(series)
    for i, (name, heights) in enumerate(series):
        axes.bar([x + (i - (len(series) - 1) / 2) * width for x in range(len(labels))], heights, width, label=name)
    axes.set_xticks(range(len(labels)), labels, rotation=30, ha="right")
    axes.set(ylabel=y_label, title=title)
    figure.legend(loc="outside right upper")


def curves(figure, series, level, level_name, x_label, y_label, title, log_y=False):
    """series: [(name, xs, ys)] over budgets, `level` as a line across (None: no line)."""
    axes = figure.add_subplot()
    for i, (name, xs, ys) in enumerate(series):
        axes.plot(xs, ys, marker=MARKERS[i % len(MARKERS)], markersize=4, linewidth=1.2, label=name)
    if level is not None:
        axes.axhline(level, color="black", linewidth=1, linestyle="--", label=level_name)
    axes.set_xscale("log", base=2)
    ticks = sorted({x for _, xs, _ in series for x in xs})
    axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
    axes.minorticks_off()
    if log_y:
        axes.set_yscale("log")
    axes.set(xlabel=x_label, ylabel=y_label, title=title)
    figure.legend(loc="outside right upper")


def heat_maps(figure, maps, x_label, y_label, title):
    """maps: [(name, rows of cells in [0, 1], None where there is none)], on one scale."""
    import numpy
    all_axes = figure.subplots(1, len(maps), squeeze=False)[0]
    for axes, (name, rows) in zip(all_axes, maps):
        cells = numpy.ma.masked_invalid(numpy.array([[numpy.nan if c is None else c for c in row] for row in rows], dtype=float))
        image = axes.imshow(cells, aspect="auto", vmin=0, vmax=1, cmap="viridis", interpolation="nearest")
        axes.grid(False)
        axes.set(title=name, xlabel=x_label, xticks=range(len(rows[0])))
    all_axes[0].set_ylabel(y_label)
    figure.colorbar(image, ax=list(all_axes))
    figure.suptitle(title)
