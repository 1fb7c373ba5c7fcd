"""Shapes of the default model's KV, and of a fast tier over it."""
LAYERS, HEADS = 30, 3
GROUPS = LAYERS * HEADS
PAGE_BYTES = 4096  # 16 tokens of 64 elements, K and V
STRIPE_BYTES = 4 * GROUPS * PAGE_BYTES
RING_PAGES = 128  # of the fast tier, per thread: what a head may select of a segment of 1,024 tokens


def fast_bytes(frames_per_group, threads=2):
    """Of a tier with so many frames for every layer and head."""
    return int((threads * RING_PAGES + GROUPS * frames_per_group) * PAGE_BYTES)
