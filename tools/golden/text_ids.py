#!/usr/bin/env python3
"""Writes digests of token ids for the strings of tests/golden/text/strings.json.

Usage: text_ids.py gguf MODEL.gguf       ids by llama.cpp: the file's own vocabulary, the same vocabulary under other
                                         pre-tokenizers, and a small SentencePiece vocabulary (trained when absent)
       text_ids.py folder NAME FOLDER    ids by Python tokenizers for FOLDER/tokenizer.json
Needs: pip install tokenizers gguf numpy sentencepiece xllamacpp

A digest file has comment lines, then per string two 32-bit FNV-1a hashes (hexadecimal) over the ids as little-endian
32-bit integers: with the text of control tokens recognised, and without.
"""
import json
import os
import struct
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden" / "text"
OTHER_PRE_TOKENIZERS = ["gpt-2", "", "qwen2", "llama-bpe"]


def digest(ids):
    value = 0x811C9DC5
    for byte in b"".join(struct.pack("<i", i) for i in ids):
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def write(name, source, encode):
    strings = json.loads((GOLDEN / "strings.json").read_text())
    lines = [f"# {len(strings)} strings, {source}"]
    for text in strings:
        lines.append(f"{digest(encode(text, True)):08x} {digest(encode(text, False)):08x}")
    (GOLDEN / f"ids_{name}.txt").write_text("\n".join(lines) + "\n")
    print(name, len(strings))


def read_vocabulary(path):
    import gguf

    fields = gguf.GGUFReader(path).fields
    get = lambda key: fields[f"tokenizer.ggml.{key}"].contents()
    return get("tokens"), get("token_type"), get("merges")


def train_sentencepiece(path):
    import sentencepiece

    strings = json.loads((GOLDEN / "strings.json").read_text())
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text.txt")
        # Scripts with thousands of characters are left to the byte tokens.
        latin = [s for s in strings if all(c < "\u0530" for c in s)]
        text.write_text("\n".join(s.replace("\n", " ").replace("\r", " ") for s in latin))
        sentencepiece.SentencePieceTrainer.train(
            input=str(text), model_prefix=f"{folder}/m", vocab_size=3000, model_type="bpe", byte_fallback=True,
            normalization_rule_name="identity", remove_extra_whitespaces=False, character_coverage=0.98,
            allow_whitespace_only_pieces=True, split_digits=True, num_threads=1, minloglevel=2,
            user_defined_symbols=["<start_of_turn>", "\n\n"])
        model = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/m.model")
    ids = range(model.vocab_size())
    kind = lambda i: (2 if model.is_unknown(i) else 3 if model.is_control(i) else 6 if model.is_byte(i) else
                      4 if model.id_to_piece(i) in ("<start_of_turn>", "\n\n") else 1)
    path.write_text(json.dumps({"tokens": [model.id_to_piece(i) for i in ids], "types": [kind(i) for i in ids],
                                "scores": [model.get_score(i) for i in ids]}) + "\n")


def from_llama_cpp(path):
    from text_llamacpp import LlamaCpp, write_gguf

    source = f"llama.cpp of xllamacpp {version('xllamacpp')}"
    server = LlamaCpp(path)
    write("smollm", source, server.ids)
    tokens, types, merges = read_vocabulary(path)
    with tempfile.TemporaryDirectory() as folder:
        for pre in OTHER_PRE_TOKENIZERS:
            name = pre or "default"
            file = f"{folder}/{name}.gguf"
            write_gguf(file, tokens, types, "gpt2", pre, merges=merges, bos=1, eos=2)
            write(name, f"{source}, SmolLM2's vocabulary with this pre-tokenizer", LlamaCpp(file).ids)
        pieces = GOLDEN / "sentencepiece.json"
        if not pieces.exists():
            train_sentencepiece(pieces)
        vocabulary = json.loads(pieces.read_text())
        file = f"{folder}/sentencepiece.gguf"
        write_gguf(file, vocabulary["tokens"], vocabulary["types"], "llama", "", scores=vocabulary["scores"], bos=1,
                   eos=2, unknown=0)
        write("sentencepiece", f"{source}, vocabulary of sentencepiece.json", LlamaCpp(file).ids)


def from_folder(name, folder):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")

    def encode(text, parse_special):
        tokenizer.encode_special_tokens = not parse_special
        return tokenizer.encode(text, add_special_tokens=False).ids

    write(name, f"Python tokenizers {version('tokenizers')}", encode)


def main():
    if sys.argv[1:2] == ["gguf"]:
        from_llama_cpp(sys.argv[2])
    elif sys.argv[1:2] == ["folder"]:
        from_folder(sys.argv[2], sys.argv[3])
    else:
        sys.exit(__doc__)
    sys.stdout.flush()
    os._exit(0)  # the reference servers have no way to stop


if __name__ == "__main__":
    main()
