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
