"""Prints a script that completes commands and flags in bash or zsh.

examples:
  eval "$(xmodal completion bash)"                      in ~/.bashrc
  xmodal completion zsh > ~/.zsh/completions/_xmodal    in a folder of fpath
"""

from pipelines.commands import Args, Parser


def flags(parser: Parser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh"))


def run(args: Args) -> str:
    import shtab

    from pipelines.commands import parser

    return shtab.complete(parser(), args.shell)
