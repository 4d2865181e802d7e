"""Selection of one output among several, and of what an output was built from."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches

from xmodal.errors import UserError
from xmodal.root.outputs import Output, find
from xmodal.root.sealed_sets import records_now
from xmodal.root.storage import open_storage


def find_output(
    root: str,
    stage: str,
    identity: str | None = None,
    *,
    of: str = "CORPUS",
    fits: Callable[[Output], bool] = lambda output: True,
    **config: object,
) -> Output:
    """Returns the one finished output of a stage: the given identity, or the only one that fits.

    If none fits, one that does not is returned, for the caller to refuse. Of several records of a corpus, those of its
    last build are meant. `of` is the corpus in a message.
    """
    there = find(root, stage, **config)
    if identity is None:
        there = [output for output in there if fits(output)] or there[:1]
    chosen = [output for output in there if identity in (None, output.identity)]
    if len(chosen) > 1 and stage == "records":
        corpora = sorted({str(output.config["corpus"]) for output in chosen})
        if len(corpora) > 1:
            raise UserError(f"{root} has records of several corpora: name one with --corpus: {', '.join(corpora)}")
        now = records_now(chosen[0].storage, corpora[0])
        chosen = [output for output in chosen if now and output.folder == now.folder] or chosen
    if len(chosen) == 1:
        return chosen[0]
    if not there:
        raise UserError(_nothing_there(root, stage, str(config.get("corpus", of)), identity))
    what = " ".join([stage, *(f"of {value}" for value in config.values())])
    if identity:
        problem = f"no {what} is {identity}"
    else:
        flag = {"records": "", "pixels": " by --pixels IDENTITY"}.get(stage, " by --features IDENTITY")
        problem = f"there are several outputs of {what}, so say which{flag}"
    listed = describe_differences(there) if len(there) > 1 else [describe(there[0])]
    raise UserError(f"{problem}; there are: {', '.join(listed)}")


def build_command(root: str, corpus: str, stage: str) -> str:
    return f"`xmodal build {corpus}/{stage} --root {shlex.quote(root)}`"


def _nothing_there(root: str, stage: str, corpus: str, identity: str | None) -> str:
    if stage == "records":
        known = sorted({str(output.config.get("corpus")) for output in find(root, "records")})
        missing, others = f"no corpus {corpus!r} under {root}", f"; there are: {', '.join(known)}" if known else ""
        like = get_close_matches(corpus, known)
    else:
        missing, others = f"no {stage!r} under {root}", ""
        folders = open_storage(root).names("")
        like = [] if stage in folders else get_close_matches(stage, folders)  # one that is there is unfinished
    if like:
        return f"{missing}; do you mean {like[0]}?{others}"
    settings = f", with the settings of {identity}" if identity else ""
    return f"{missing}: build it first{settings} ({build_command(root, corpus, stage)}){others}"


def ancestor(output: Output, stage: str) -> Output | None:
    """Finds the output of a stage that another was built from, directly or not, if it is still there."""
    for source in output.about.get("inputs", ()):
        made = Output(output.storage, f"{source.get('stage')}/{source.get('identity')}")
        if made.storage.size(f"{made.folder}/stage.json") is None:
            continue
        if found := made if source.get("stage") == stage else ancestor(made, stage):
            return found
    return None


def media_set_of(features: Output) -> str | None:
    media = ancestor(features, "media")
    name = media and media.config.get("name")
    return None if name is None else str(name)


def may_share_media(features: Output, records: Output) -> bool:
    """Is false if features and records name different media sets."""
    wanted = records.config.get("media_set")
    return media_set_of(features) in (None, wanted) or wanted is None


def describe_differences(outputs: Sequence[Output]) -> Iterator[str]:
    """Describes outputs by the settings that differ, or else by date, media set and inputs."""
    names = dict.fromkeys(name for output in outputs for name in output.config)
    differing = [name for name in names if any(o.config.get(name) != outputs[0].config.get(name) for o in outputs)]
    for output in outputs:
        facts = [f"{name}={output.config[name]}" for name in differing if name in output.config]
        yield f"{output.identity} ({', '.join(facts or _origin(output))})"


def _origin(output: Output) -> list[str]:
    runs = [name for name in output.storage.names(f"{output.folder}/_runs") if name[:8].isdigit()]
    built = [f"built {run[:4]}-{run[4:6]}-{run[6:8]}" for run in runs[-1:]]
    name = media_set_of(output)
    media_set = [f"media set {name}"] if name else []
    return built + media_set + [f"of {source['stage']}/{source['identity']}" for source in output.about["inputs"]]


def describe(output: Output, config: Mapping[str, object] | None = None) -> str:
    """Names an output by its identity and settings, or by others that are given."""
    settings = output.config if config is None else config
    shown = (f"{name}={value!s:.24}" for name, value in settings.items() if name != "_type")
    return f"{output.identity} ({', '.join(shown)})"
