"""Sources of captions: the records have what people wrote; stages make others of them, such as regional semantics.

A stage's captions have its name as their source. A view reads them by `text="semantics"`, or "semantics/IDENTITY" where
a root has several outputs; `--texts IDENTITY` says so of what a recipe reads.
"""

from xmodal.errors import UserError
from xmodal.recipes import WRITTEN
from xmodal.root.outputs import Output, made_of
from xmodal.root.selection import build_command, current, describe_differences

CAPTIONS = "captions.parquet"


def captions_output(records: Output, text: str) -> Output:
    """Finds the output with the captions of a source: what a stage made of the records, else the records."""
    source, slash, identity = text.partition("/")
    if text in WRITTEN:
        return records
    if source in WRITTEN:
        raise UserError(f"captions by {source} are those of the records: text={source}, not {text!r}")
    made = [output for output in made_of(records, source) if CAPTIONS in output.files]
    chosen = [output for output in made if output.identity == identity] if slash else current(made)
    if len(chosen) == 1:
        return chosen[0]
    if not made and not slash:
        return records
    corpus, there = str(records.config["corpus"]), ", ".join(describe_differences(made)) or "none"
    if chosen:
        several = f"there are several captions by {source} of {corpus}"
        how = f"by --texts IDENTITY, or in a setting by text={source}/IDENTITY"
        raise UserError(f"{several}, so say which {how}; there are: {there}")
    cure = build_command(records.storage.url, corpus, source)
    raise UserError(f"no captions by {source} of {corpus} are {identity!r}: build them ({cure}); there are: {there}")


def made_captions(records: Output) -> list[Output]:
    """Finds all outputs with captions that stages made of the records."""
    return [output for output in made_of(records) if CAPTIONS in output.files]


def named_text(records: Output, text: str) -> str:
    """The same text, naming the output that has it, unless people wrote it."""
    output = captions_output(records, text)
    return text if output.folder == records.folder else f"{output.stage}/{output.identity}"
