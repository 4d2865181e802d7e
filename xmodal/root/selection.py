"""Selection of one output among several, and of what an output was built from."""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Any

from xmodal.errors import UserError
from xmodal.root.outputs import Output, find
from xmodal.root.sealed_sets import records_now, sealed_now
from xmodal.root.storage import open_storage

OPAQUE = re.compile(r"=[0-9a-f]{16,}$")  # a checksum: it differs, but tells nobody how
NOT_IN_USE = "not in use"


def find_output(
    root: str,
    stage: str,
    identity: str | None = None,
    *,
    of: str = "CORPUS",
    fits: Callable[[Output], bool] = lambda output: True,
    settings: Sequence[str] = (),
    **config: object,
) -> Output:
    """Returns the one finished output of a stage: the given identity, or the only current one that fits.

    If none fits, one that does not is returned, for the caller to refuse. `of` is the corpus in a message, and
    `settings` are those that the output is to be built with.
    """
    there = find(root, stage, **config)
    if identity is None:
        there = [output for output in there if fits(output)] or there[:1]
    chosen = [output for output in there if identity in (None, output.identity)]
    if len(chosen) > 1 and stage == "records":
        corpora = sorted({str(output.config["corpus"]) for output in chosen})
        if len(corpora) > 1:
            raise UserError(f"{root} has records of several corpora: name one with --corpus: {', '.join(corpora)}")
    chosen = current(chosen)
    if len(chosen) == 1:
        return chosen[0]
    if not there:
        raise UserError(_nothing_there(root, stage, str(config.get("corpus", of)), identity, settings))
    what = " ".join([stage, *(f"of {value}" for value in config.values())])
    if identity:
        problem = f"no {what} is {identity}"
    else:
        flag = {"records": "", "pixels": " by --pixels IDENTITY"}.get(stage, " by --features IDENTITY")
        problem = f"there are several outputs of {what}, so say which{flag}"
    some = chosen or there
    listed = describe_differences(some) if len(some) > 1 else [describe(some[0])]
    raise UserError(f"{problem}; there are: {', '.join(listed)}")


def build_command(root: str, corpus: str, stage: str, settings: Sequence[str] = ()) -> str:
    """Writes the command in backticks, with its settings, such as resnet.network=resnet50."""
    chosen = "".join(f" --set {shlex.quote(setting)}" for setting in settings)
    return f"`xmodal build {corpus}/{stage} --root {shlex.quote(root)}{chosen}`"


def _nothing_there(root: str, stage: str, corpus: str, identity: str | None, settings: Sequence[str]) -> str:
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
    like_it = f", with the settings of {identity}" if identity else ""
    return f"{missing}: build it first{like_it} ({build_command(root, corpus, stage, settings)}){others}"


def current(outputs: list[Output]) -> list[Output]:
    """Drops outputs that were made of what has been replaced, unless all were."""
    if len(outputs) < 2:
        return outputs
    whole = [output for output in outputs if is_current(output)]
    return whole or [output for output in outputs if not is_replaced(output)] or outputs


def is_replaced(output: Output) -> bool:
    """Whether another sealed set, or other records of its corpus, took its place."""
    now, config = None, output.config
    if output.stage in ("sources", "media"):
        now = sealed_now(output.storage, output.stage, str(config.get("name")))
    elif output.stage == "records":
        now = records_now(output.storage, str(config.get("corpus")))
    return now is not None and now.folder != output.folder


def is_current(output: Output) -> bool:
    return not any(map(is_replaced, _with_ancestors(output)))


def changed_media(output: Output, corpus: str) -> str:
    """Says that an output was made of media that have changed since, and what makes it anew; else ''."""
    media = ancestor(output, "media")
    if media is None or not is_replaced(media):
        return ""
    cure = build_command(output.storage.url, corpus, output.stage)
    return f"{output.where} was made of pictures or clips that have changed since: build it again ({cure})"


def _with_ancestors(output: Output) -> Iterator[Output]:
    """Yields an output and, each once, all that it was built from and that is still there."""
    left, seen = [output], set[str]()
    while left:
        made = left.pop()
        if made.folder in seen or made.storage.size(f"{made.folder}/stage.json") is None:
            continue
        seen.add(made.folder)
        yield made
        inputs = (f"{source['stage']}/{source['identity']}" for source in reversed(made.about["inputs"]))
        left += [Output(output.storage, folder) for folder in inputs]


def ancestor(output: Output, stage: str) -> Output | None:
    """Finds the output of a stage that another was built from, directly or not, if it is still there."""
    ancestors = islice(_with_ancestors(output), 1, None)
    return next((made for made in ancestors if made.folder.startswith(f"{stage}/")), None)


def source_of(features: Output, stage: str, corpus: str) -> Output:
    """Finds the output of a stage that features were made of; refuses if it is gone."""
    source = ancestor(features, stage)
    if source is None:
        root = features.storage.url
        cure = build_command(root, corpus, stage)
        raise UserError(f"the {stage} of {features.where} are not under {root}: {cure} gets them again")
    return source


def media_for(features: Output, records: Output) -> Output:
    """Finds the media of features; of imported ones, which do not tell, those that the records name."""
    return ancestor(features, "media") or media_of(records)


def media_of(records: Output) -> Output:
    """Finds the media set that records name."""
    corpus, name = str(records.config["corpus"]), records.config["media_set"]
    return find_output(records.storage.url, "media", of=corpus, name=name)


def media_set_of(features: Output) -> str | None:
    media = ancestor(features, "media")
    name = media and media.config.get("name")
    return None if name is None else str(name)


def may_share_media(features: Output, records: Output) -> bool:
    """Is false if features and records name different media sets."""
    wanted = records.config.get("media_set")
    return media_set_of(features) in (None, wanted) or wanted is None


def describe_differences(outputs: Sequence[Output]) -> Iterator[str]:
    """Describes outputs by the settings that differ; where these do not tell, by date, media set and inputs too."""
    names = dict.fromkeys(name for output in outputs for name in output.config)
    differing = [name for name in names if any(o.config.get(name) != outputs[0].config.get(name) for o in outputs)]
    facts = [_facts({name: o.config[name] for name in differing if name in o.config}) for o in outputs]
    is_told = len({*map(tuple, facts)}) == len(outputs) > 1
    in_use = [*map(is_current, outputs)]
    for output, some, is_used in zip(outputs, facts, in_use, strict=True):
        state = list[str]()
        if not all(in_use):
            state = ["current" if is_used else NOT_IN_USE]
        yield f"{output.identity} ({', '.join(some + state + ([] if is_told else _origin(output)))})"


def _facts(config: Mapping[str, object]) -> list[str]:
    """Plain values of a config; what a stage worked out for itself, such as how pictures are prepared, is left out."""
    told = {name: _words_of(value) for name, value in config.items() if name != "_type"}
    plain = {name: value for name, value in told.items() if not isinstance(value, dict)}
    facts = (f"{name}={value!s:.24}" for name, value in plain.items())
    return [fact for fact in facts if not OPAQUE.search(fact)]


def _words_of(value: object) -> object:
    """The words of a value that has nothing but lists of words, as a detector's; other values stay."""
    lists: list[Any] = [each for name, each in value.items() if name != "_type"] if isinstance(value, dict) else []
    if not lists or not all(isinstance(each, list) for each in lists):
        return value
    words = [word for each in lists for word in each]
    return ",".join(words) if words and all(isinstance(word, str) for word in words) else value


def _origin(output: Output) -> list[str]:
    runs = [name for name in output.storage.names(f"{output.folder}/_runs") if name[:8].isdigit()]
    built = [f"built {run[:4]}-{run[4:6]}-{run[6:8]}" for run in runs[-1:]]
    name = media_set_of(output)
    media_set = [f"media set {name}"] if name else []
    return built + media_set + [f"of {source['stage']}/{source['identity']}" for source in output.about["inputs"]]


def describe(output: Output, config: Mapping[str, object] | None = None) -> str:
    """Names an output by its settings, or others that are given, and says if it is not in use."""
    facts = _facts(output.config if config is None else config)
    return f"{output.identity} ({', '.join(facts if is_current(output) else [*facts, NOT_IN_USE])})"
