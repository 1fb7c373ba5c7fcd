"""Page-access traces of a server (docs/formats.md): which pages each layer and KV head read in each decode step."""
import common  # noqa: F401  the path to the reader
from page_trace import SELECT, records


def selections(path):
    """{step: {(request, layer, head): page ids}}, also of a trace whose writer was stopped."""
    steps = {}
    for step, request, layer, head, kind, ids in records(path, whole=False):
        if kind == SELECT:
            steps.setdefault(step, {})[request, layer, head] = ids
    return steps


def pages_by_layer(path, groups):
    """{layer: pages of all heads} of the last step of one request in which every group has chosen."""
    whole = [step for _, step in sorted(selections(path).items()) if len(step) == groups]
    if not whole:
        raise SystemExit(f"{path} has no step of {groups} groups")
    layers = {}
    for (_, layer, _), ids in whole[-1].items():
        layers[layer] = layers.get(layer, 0) + len(ids)
    return layers
