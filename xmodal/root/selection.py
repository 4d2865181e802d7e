"""Which of the outputs under a root is meant, where several would do; and what one was made of, and by."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence

from xmodal.errors import UserError
from xmodal.root.outputs import Output, find
from xmodal.root.sealed_sets import records_now


def choose(
    root: str,
    stage: str,
    identity: str | None = None,
    *,
    of: str = "CORPUS",
    fits: Callable[[Output], bool] = lambda output: True,
    **config: object,
) -> Output:
    """The one finished output of a stage: the given one, or the only one that fits; else it is to be built `of`.

    Where none fits, one that does not is for the caller to refuse. Of several records of a corpus it is those that
    its last build made, as a list that grew leaves others behind.
    """
    there = find(root, stage, **config)
    if identity is None:
        there = [output for output in there if fits(output)] or there[:1]
    chosen = [output for output in there if identity in (None, output.identity)]
    if len(chosen) > 1 and stage == "records" and "corpus" in config:
        now = records_now(chosen[0].storage, str(config["corpus"]))
        chosen = [output for output in chosen if now and output.folder == now.folder] or chosen
    if len(chosen) == 1:
        return chosen[0]
    what = " ".join([stage, *(f"of {value}" for value in config.values())])
    if not there:
        command = f"xmodal build {config.get('corpus', of)}/{stage} --root {shlex.quote(root)}"
        raise UserError(f"there is no {what} under {root}: build it first (`{command}`)")
    by = f" by --{'pixels' if stage == 'pixels' else 'features'} IDENTITY"
    if stage == "records":
        by = "" if "corpus" in config else " by --corpus"
    wanted = f"no {what} is {identity}" if identity else f"there are several outputs of {what}, so say which{by}"
    raise UserError(f"{wanted}; there are: {', '.join(_told_apart(there) if len(there) > 1 else map(told, there))}")


def made_from(features: Output, stage: str) -> Output | None:
    """That of a stage, as "media", which others may lie between; None where it is not named, or is there no more."""
    for source in features.about.get("inputs", ()):
        made = Output(features.storage, f"{source.get('stage')}/{source.get('identity')}")
        if made.storage.size(f"{made.folder}/stage.json") is None:
            continue
        if found := made if source.get("stage") == stage else made_from(made, stage):
            return found
    return None


def is_of(features: Output, records: Output) -> bool:
    """Whether they may be of the same media set: some do not tell."""
    wanted = records.config.get("media_set")
    return _media_set(features) in (None, wanted) or wanted is None


def _media_set(features: Output) -> str | None:
    media = made_from(features, "media")
    name = media and media.config.get("name")
    return None if name is None else str(name)


def _told_apart(outputs: Sequence[Output]) -> Iterator[str]:
    """By the settings that differ among them; where none does, by what they were made of."""
    names = dict.fromkeys(name for output in outputs for name in output.config)
    told = [name for name in names if any(o.config.get(name) != outputs[0].config.get(name) for o in outputs)]
    for output in outputs:
        made_of = " and ".join(f"{source['stage']}/{source['identity']}" for source in output.about["inputs"])
        settings = ", ".join(f"{name}={output.config[name]}" for name in told if name in output.config)
        yield f"{output.identity} ({settings or f'of {made_of}'})"


def told(output: Output, config: Mapping[str, object] | None = None) -> str:
    """Its identity, with its settings, or those of what it was made from; of checksums the beginning tells enough."""
    settings = output.config if config is None else config
    shown = (f"{name}={value!s:.24}" for name, value in settings.items() if name != "_type")
    return f"{output.identity} ({', '.join(shown)})"
