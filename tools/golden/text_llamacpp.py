"""llama.cpp's tokenizer as a reference: writes a GGUF file with a vocabulary and a tiny random model, and asks
llama.cpp's server (Python package xllamacpp) for ids."""
import json
import urllib.request

import gguf
import numpy as np
import xllamacpp


def write_gguf(path, tokens, types, model, pre, merges=None, scores=None, bos=None, eos=None, unknown=None):
    width, heads = 32, 2
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(4096)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(width)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_rope_dimension_count(width // heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model(model)
    if pre:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if merges is not None:
        writer.add_token_merges(merges)
    if scores is not None:
        writer.add_token_scores(scores)
    for add, value in ((writer.add_bos_token_id, bos), (writer.add_eos_token_id, eos), (writer.add_unk_token_id, unknown)):
        if value is not None:
            add(value)
    zeros = lambda *shape: np.zeros(shape, dtype=np.float32)
    writer.add_tensor("token_embd.weight", zeros(len(tokens), width))
    writer.add_tensor("output_norm.weight", zeros(width))
    for name in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"blk.0.{name}.weight", zeros(width))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", zeros(width, width))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class LlamaCpp:
    """A server on `path`; call it with a text."""

    def __init__(self, path):
        params = xllamacpp.CommonParams()
        params.model.path = path
        params.n_ctx = 512
        params.warmup = False
        self.server = xllamacpp.Server(params)
        self.address = self.server.listening_address

    def ids(self, text, parse_special=True, add_special=False):
        body = json.dumps({"content": text, "add_special": add_special, "parse_special": parse_special}).encode()
        request = urllib.request.Request(f"{self.address}/tokenize", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as response:
            return json.load(response)["tokens"]
