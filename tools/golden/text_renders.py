#!/usr/bin/env python3
"""Writes tests/golden/text/renders.txt: digests of chat templates rendered by transformers.

Usage: text_renders.py FOLDER...    folders of *.jinja files; the file name without suffix is the template's name
Needs: pip install transformers jinja2

Each line: template, conversation of conversations.json, and a 64-bit FNV-1a hash of the rendered UTF-8 text; or the
word "raised" and the hash of the message given to raise_exception; or "failed" for any other error.
"""
import datetime
import json
import sys
from importlib.metadata import version
from pathlib import Path

import jinja2
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden" / "text"


class FixedTime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 3, 4, 12, 0, 0)


def digest(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def render(tokenizer, template, conversation, tools):
    return tokenizer.apply_chat_template(
        conversation["messages"], tools=tools if "tools" in conversation else None, chat_template=template,
        tokenize=False, add_generation_prompt=conversation.get("add_generation_prompt", True),
        continue_final_message=conversation.get("continue_final_message", False), **conversation.get("kwargs", {}))


def outcome(tokenizer, template, conversation, tools):
    try:
        return digest(render(tokenizer, template, conversation, tools))
    except jinja2.exceptions.TemplateError as error:
        if type(error) is jinja2.exceptions.TemplateError:
            return "raised " + digest(str(error))
        return "failed"
    except Exception:  # a template may fail in any way that Python can
        return "failed"


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    chat_template_utils.datetime = FixedTime
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE({"<s>": 0, "</s>": 1}, [])), bos_token="<s>", eos_token="</s>")
    conversations = json.loads((GOLDEN / "conversations.json").read_text())
    tools = json.loads((GOLDEN / "tools.json").read_text())
    lines = [f"# transformers {version('transformers')}, jinja2 {version('jinja2')}"]
    for path in sorted(p for folder in sys.argv[1:] for p in Path(folder).glob("*.jinja")):
        template = path.read_bytes().decode()
        for conversation in conversations:
            result = outcome(tokenizer, template, conversation, tools)
            lines.append(f"{path.stem} {conversation['name']} {result}")
    (GOLDEN / "renders.txt").write_text("\n".join(lines) + "\n")
    print(len(lines) - 1, "renders,", sum(" raised " in l for l in lines), "raised,", sum(l.endswith("failed") for l in lines), "failed")


if __name__ == "__main__":
    main()
