"""The gate of one layer in torch: arXiv 2506.08889, with the block's first position for its rotation."""

import math

import torch

NORM_EPS = 1e-6


def rotate(x, positions, theta):
    """x: [n, ..., dim] at positions [n]; rotation pairs (i, i + dim / 2)."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = positions.to(torch.float64)[:, None] * frequencies
    shape = (x.shape[0],) + (1,) * (x.dim() - 2) + (half,)
    cos, sin = angles.cos().float().view(shape), angles.sin().float().view(shape)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


def pool(keys, block):
    """Pre-RoPE keys [n, kv_heads, d] to features [n // block, kv_heads, 3 d]: max, min, mean of complete blocks."""
    blocks = keys[:keys.shape[0] // block * block].view(-1, block, *keys.shape[1:])
    return torch.cat((blocks.amax(1), blocks.amin(1), blocks.mean(1)), -1)


def norm(x, weight):
    if weight is None:
        return x
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + NORM_EPS) * weight


def block_keys(gate, features, block, theta):
    """[blocks, kv_heads, width] of features [blocks, kv_heads, 3 d]."""
    keys = norm(torch.einsum("bhi,hio->bho", features, gate["k"]), gate.get("knorm"))
    return rotate(keys, torch.arange(features.shape[0]) * block, theta)


def logits(gate, queries, positions, features, block, theta):
    """[rows, kv_heads, blocks + 1] for pre-RoPE queries [rows, kv_heads, group, d]; -inf where a block is not complete
    for the row. The last column is the row's own incomplete block, whose key is 0; -inf where there is none."""
    q = norm(torch.einsum("rhgi,hgio->rho", queries, gate["q"]), gate.get("qnorm"))
    q = rotate(q, positions, theta)
    keys = block_keys(gate, features, block, theta)
    scores = torch.einsum("rho,bho->rhb", q, keys) / math.sqrt(q.shape[-1])
    complete = (positions + 1) // block
    later = torch.arange(keys.shape[0])[None, :] >= complete[:, None]
    own = torch.where((positions + 1) % block == 0, -math.inf, 0.0)
    own = own[:, None, None].expand(-1, scores.shape[1], 1)
    return torch.cat((scores.masked_fill(later[:, None, :], -math.inf), own), -1)


def mean_key_gate(kv_heads, group, d):
    """Untrained: the mean query of the group against the block's mean key."""
    eye = torch.eye(d)
    k = torch.zeros(kv_heads, 3 * d, d)
    k[:, 2 * d:] = eye
    return {"q": (eye / group).expand(kv_heads, group, d, d).clone(), "k": k}
