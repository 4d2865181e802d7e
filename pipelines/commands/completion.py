"""Prints a script that completes commands and flags in bash or zsh.

examples:
  eval "$(xmodal completion bash)"                      in ~/.bashrc
  xmodal completion zsh > ~/.zsh/completions/_xmodal    in a folder of fpath
"""

import argparse

GROUP = "installation"


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh"))


def run(args: argparse.Namespace) -> str:
    import shtab

    from pipelines.commands import parser

    return shtab.complete(parser(), args.shell)


def text(result: str) -> list[str]:
    return [result]
