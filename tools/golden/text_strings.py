#!/usr/bin/env python3
"""Writes tests/golden/text/strings.json: varied strings on which tokenizers are compared.

Usage: text_strings.py OUTPUT. The seed is fixed, so the file is reproducible. Code points are limited to those
assigned in Unicode 14, on which every tokenizer's character tables agree.
"""
import json
import random
import sys
import unicodedata

SEED = 20260807

WORDS = """the of and to in a is that for it was on are as with they be at one have this from or had by but some what
there we can out other were all your when up use word how said an each she which do their time if will way about many
then them would write like so these her long make thing see him two has look more day could go come did my sound no
most number who over know water than call first people may down side been now find any new work part take get place
made live where after back little only round man year came show every good me give our under name very through just
form great think say help low line before turn cause same mean differ move right boy old too does tell sentence
tokenization antidisestablishmentarianism naïve café résumé Zürich façade coöperate Ångström smörgåsbord""".split()

CONTRACTIONS = ["I'm", "I'LL", "don't", "DON'T", "we've", "they'RE", "it's", "IT'S", "he'd", "o'clock", "rock'n'roll",
                "'tis", "y'all'd've", "’twas", "isn’t", "'s", "'LL", "''re"]

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>",
            "<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>", "<s>", "</s>", "<unk>", "<pad>", "<bos>",
            "<eos>", "<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]", "<think>", "</think>", "<tool_call>",
            "</tool_call>", "<|fim_prefix|>", "<file_sep>", "<repo_name>", "<0x0A>", "<0xE2>",
            "<｜begin▁of▁sentence｜>", "<｜User｜>", "<|start|>", "<|message|>", "<jupyter_start>", "<empty_output>"]

CODE = ["def f(x):\n    return x + 1\n", "for (int i = 0; i < n; ++i) {\n\t\tsum += a[i];\n\t}\n", "#include <vector>\r\n",
        "SELECT * FROM t WHERE id=42 AND name<>'x';", "<div class=\"a b\">&nbsp;</div>", "{\"k\": [1, 2.5e-3, null]}",
        "x->y.z::w<T>(a&&b||!c)", "let mut v: Vec<u8> = Vec::new();", "if __name__ == \"__main__\":\n        main()",
        "git commit -m 'fix: #1234' && rm -rf ./build/*", "0xDEADBEEF ^ ~0b1011 >> 3", "\\frac{a}{b} \\sum_{i=1}^{n}",
        "https://example.org/a/b?q=1&r=%20#frag", "user.name+tag@example.co.uk", "C:\\Users\\me\\file.txt",
        "/* comment */ // another\n# third", "fn main() { println!(\"{:?}\", x); }", "a\t\tb\t c", "-----BEGIN-----",
        "====", "!!!???...", "$12,345.67", "€9,99", "100%", "3.14159265358979", "1e-10", "2024-02-29T23:59:60Z"]

SPACES = [" ", "  ", "   ", "    ", "\t", "\n", "\n\n", "\r\n", "\u00a0", "\u3000", "\u2003", "\u200b", "\x0b", "\x0c",
          "\u2028", "\u0085", " \n", "\n ", "\t\n\t"]

EMOJI = ["😀", "👍🏽", "👨‍👩‍👧‍👦", "🇩🇪", "🏳️‍🌈", "❤️", "🤷🏿‍♀️", "1️⃣", "🧑🏻‍💻", "🫠", "✅", "☃", "⌚️", "🀄"]

RANGES = [(0x4E00, 0x9FFF), (0x3040, 0x30FF), (0xAC00, 0xD7A3), (0x0400, 0x04FF), (0x0600, 0x06FF), (0x0900, 0x097F),
          (0x0E00, 0x0E7F), (0x0590, 0x05FF), (0x0370, 0x03FF), (0x0041, 0x024F), (0x1E00, 0x1EFF), (0x10A0, 0x10FF)]

DIGITS = ["0123456789", "٠١٢٣٤٥٦٧٨٩", "०१२३४५६७८९", "０１２３４５６７８９", "²³¹", "½¾", "ⅣⅫ", "①②"]


def assigned(code_point):
    return unicodedata.category(chr(code_point)) not in ("Cn", "Cs", "Co")


def from_range(rng, low, high):
    while True:
        code_point = rng.randint(low, high)
        if assigned(code_point):
            return chr(code_point)


def english(rng):
    words = [rng.choice(WORDS) for _ in range(rng.randint(1, 14))]
    style = rng.randrange(5)
    if style == 0:
        words = [w.upper() for w in words]
    elif style == 1:
        words = [w.capitalize() for w in words]
    elif style == 2:
        words.insert(rng.randrange(len(words) + 1), rng.choice(CONTRACTIONS))
    return rng.choice(["", " ", "  "]) + " ".join(words) + rng.choice(["", ".", "!", "?", " ", "...", ",\n"])


def code(rng):
    return rng.choice(["", " ", "\n"]).join(rng.choice(CODE) for _ in range(rng.randint(1, 4)))


def spaces(rng):
    parts = []
    for _ in range(rng.randint(1, 6)):
        parts.append(rng.choice(SPACES) * rng.choice([1, 1, 2, 3, 7, 16]))
        if rng.random() < 0.5:
            parts.append(rng.choice(WORDS + CODE + ["1", "'s", "."]))
    return "".join(parts)


def digits(rng):
    alphabet = rng.choice(DIGITS)
    run = "".join(rng.choice(alphabet) for _ in range(rng.randint(1, 24)))
    return rng.choice(["", " ", "a", "-", "$", "x="]) + run + rng.choice(["", " ", "km", ".", ",000", "th", "\n1"])


def special(rng):
    parts = []
    for _ in range(rng.randint(1, 5)):
        token = rng.choice(SPECIALS)
        if rng.random() < 0.2:
            token = token[:rng.randint(1, len(token))]
        parts.append(token)
        parts.append(rng.choice(["", " ", "\n", "user", "Hi", " x "]))
    return "".join(parts)


def emoji(rng):
    return rng.choice(["", " "]).join(rng.choice(EMOJI + WORDS[:5]) for _ in range(rng.randint(1, 8)))


def script(rng):
    low, high = rng.choice(RANGES)
    word = lambda: "".join(from_range(rng, low, high) for _ in range(rng.randint(1, 9)))
    return rng.choice([" ", "", "，", ". "]).join(word() for _ in range(rng.randint(1, 5)))


def anything(rng):
    high = rng.choice([0x7F, 0x7FF, 0xFFFF, 0x1FAFF])
    return "".join(from_range(rng, 1, high) for _ in range(rng.randint(1, 20)))


def mixed(rng):
    makers = [english, code, spaces, digits, special, emoji, script, anything]
    return "".join(rng.choice(makers)(rng) for _ in range(rng.randint(2, 4)))


def main():
    rng = random.Random(SEED)
    strings = ["", " ", "\n", "a", "Hello, world!"] + SPACES + CONTRACTIONS + SPECIALS + EMOJI
    counts = {english: 900, code: 700, spaces: 900, digits: 700, special: 800, emoji: 300, script: 900, anything: 700,
              mixed: 600}
    for maker, count in counts.items():
        strings += [maker(rng) for _ in range(count)]
    strings = list(dict.fromkeys(strings))
    with open(sys.argv[1], "w", encoding="ascii") as out:
        out.write("[\n" + ",\n".join(json.dumps(s) for s in strings) + "\n]\n")
    print(f"{len(strings)} strings")


if __name__ == "__main__":
    main()
