#!/usr/bin/env python3
"""Gates of SeerAttention-R for spindle: converts published ones, distils new ones. See README.md."""

import argparse


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    convert = commands.add_parser("convert", help="a published attn_gate_weights.pth to a gate file")
    convert.add_argument("--weights", required=True, help="attn_gate_weights.pth")
    convert.add_argument("--config", required=True, help="the config.json beside it")
    convert.add_argument("--model", help="the model that they belong to: other models are refused then")
    convert.add_argument("--out", required=True)

    collect = commands.add_parser("collect", help="run a model over texts and keep what gates learn from")
    collect.add_argument("--model", required=True, help="a GGUF file or a Hugging Face folder")
    collect.add_argument("--train", required=True, help="folder of .txt files")
    collect.add_argument("--held-out", required=True, help="folder of other .txt files")
    collect.add_argument("--cache", required=True, help="folder for the results")
    collect.add_argument("--num-train", type=int, default=64, help="windows")
    collect.add_argument("--num-held-out", type=int, default=8)
    collect.add_argument("--lengths", type=int, nargs="+", default=[4096, 8192], help="tokens of windows, in rotation")
    collect.add_argument("--rows", type=int, default=256, help="queries of a window, from its second half")
    collect.add_argument("--block", type=int, default=64)
    collect.add_argument("--seed", type=int, default=1)

    train = commands.add_parser("train", help="fit gates to what collect has kept")
    train.add_argument("--cache", required=True)
    train.add_argument("--out", required=True, help="the gate file")
    train.add_argument("--report", required=True, help="JSON, on the held-out windows")
    train.add_argument("--width", type=int, default=64)
    train.add_argument("--qk-norm", action="store_true")
    train.add_argument("--steps", type=int, default=800)
    train.add_argument("--batch", type=int, default=4, help="windows per step")
    train.add_argument("--block", type=int, default=64)
    train.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main():
    args = parse()
    if args.command == "convert":
        from convert import convert
        convert(args)
    elif args.command == "collect":
        from collect import collect
        collect(args)
    else:
        from train import train
        train(args)


if __name__ == "__main__":
    main()
