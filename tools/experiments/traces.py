"""Page-access traces of a server (docs/formats.md): which pages each layer and KV head read in each decode step."""
import struct

HEADER_BYTES, BLOCK_HEAD, RECORD_HEAD = 128, struct.Struct("<4s3I"), struct.Struct("<IHHBBH")
KIND_SELECT, HITS_BIT = 1, 0x80


def ids_of(data, at, count):
    """(ids, where they end): differences in groups of 7 bits."""
    ids, last = [], -1
    for _ in range(count):
        value, shift = 0, 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        last = value if last < 0 else last + 1 + value
        ids.append(last)
    return ids, at


def selections(path):
    """{step: {(request, layer, head): page ids}}"""
    data = path.read_bytes()
    if data[:8] != b"SPKVPGTR":
        raise SystemExit(f"{path} is no page-access trace")
    steps, at = {}, HEADER_BYTES
    while at + BLOCK_HEAD.size <= len(data):
        mark, size, _, _ = BLOCK_HEAD.unpack_from(data, at)
        if mark != b"PGBK" or at + BLOCK_HEAD.size + size > len(data):
            break  # cut when its writer stopped
        at += BLOCK_HEAD.size
        end = at + size
        while at < end:
            step, request, layer, head, flags, count = RECORD_HEAD.unpack_from(data, at)
            ids, at = ids_of(data, at + RECORD_HEAD.size, count)
            if flags & HITS_BIT:
                at += (count + 7) // 8
            if flags & 0x0F == KIND_SELECT:
                steps.setdefault(step, {})[request, layer, head] = ids
        at = end + 4
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
