"""Prints a script that completes commands, flags, corpora, stages and models in bash or zsh.

examples:
  eval "$(xmodal completion bash)"                      in ~/.bashrc
  xmodal completion zsh > ~/.zsh/completions/_xmodal    in a folder of fpath
"""

from pipelines.commands import Args, Parser, _flags

FUNCTIONS = {  # a file will do in place of a name
    "bash": "{name}() {{ compgen -f -W '{words}' -- \"$1\"; }}\n",
    "zsh": "{name}() {{ _alternative 'names:name:({words})' 'files:file:_files'; }}\n",
}


def flags(parser: Parser) -> None:
    parser.add_argument("shell", choices=sorted(FUNCTIONS))


def run(args: Args) -> str:
    import shtab

    from pipelines.commands import parser

    whole, known, function = parser(), _words(), FUNCTIONS[args.shell]
    (commands,) = (action.choices for action in whole._actions if isinstance(action.choices, dict))
    for command in commands.values():
        for action in command._actions:
            if action.metavar in known:
                action.complete = {args.shell: _name(action.metavar)}
    functions = (function.format(name=_name(what), words=" ".join(words)) for what, words in known.items())
    return shtab.complete(whole, args.shell, preamble="".join(functions))


def _words() -> dict[str, list[str]]:
    """The words that may stand for each metavar."""
    from xmodal import corpora, models

    stages, here = _flags.stage_names(), corpora.names()
    pairs = [f"{corpus}/{stage}" for corpus in here for stage in stages]
    return {
        "CORPUS": here,
        "CORPUS[/STAGE]": here + pairs,
        "CORPUS/STAGE|STAGE|RECIPE": stages + models.names() + pairs,
        "RECIPE": models.names(),
        "mine.py|NAME": here + models.names(),
    }


def _name(metavar: str) -> str:
    return "_xmodal_" + "".join(filter(str.isalpha, metavar)).lower()
