"""Reads page-access traces (docs/formats.md): what the decode steps of each request selected."""
import struct

HEADER = 128
SELECT, APPEND, END = 1, 2, 6
LAST_BLOCK, CUT = 1, 2


def records(path, whole=True):
    """(step, request, layer, head, kind, ids) of all records; of a trace whose writer was stopped (`whole` False): of its complete blocks."""
    data = path.read_bytes()
    if data[:8] != b"SPKVPGTR":
        raise ValueError(f"{path} is no page-access trace")
    at, is_last = HEADER, False
    while not is_last:
        has_block = data[at:at + 4] == b"PGBK" and at + 16 <= len(data)
        size, _, flags = struct.unpack_from("<III", data, at + 4) if has_block else (0, 0, 0)
        if not has_block or at + 16 + size > len(data):
            if whole:
                raise ValueError(f"{path} has no last block")
            return
        if whole and flags & CUT:
            raise ValueError(f"{path} was cut")
        is_last = bool(flags & LAST_BLOCK)
        at += 16
        yield from block_records(data, at, at + size)
        at += size + 4


def block_records(data, at, end):
    while at < end:
        step, request, layer, head, flags, count = struct.unpack_from("<IHHBBH", data, at)
        at += 12
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
            last = value if last < 0 else last + value + 1
            ids.append(last)
        if flags & 0x80:
            at += (count + 7) // 8
        yield step, request, layer, head, flags & 0xF, ids


def decode_selections(path):
    """Per request, in the order of their ends: [decode step][(layer, head)] → pages it selected."""
    done, running = [], {}
    for step, request, layer, head, kind, ids in records(path):
        selected, appended = running.setdefault(request, ({}, set()))
        if kind == SELECT:
            selected.setdefault(step, {}).setdefault((layer, head), []).extend(ids)
        elif kind == APPEND:
            appended.add(step)
        elif kind == END:
            done.append([selected[s] for s in sorted(appended) if s in selected])
            del running[request]
    return done
