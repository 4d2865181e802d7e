"""Retries units of a stage with failures that another try may be spared, such as clips that took too long.

Outputs made of the retried one become unfinished; their next build makes again the units that read what has changed.
"""

from typing import Any

from pipelines import stages
from pipelines.engine.building import build
from pipelines.engine.commits import Commits
from pipelines.stages import FILE_SETS
from pipelines.upkeep.corpus_build import CorpusBuild
from xmodal.errors import UserError
from xmodal.root.outputs import directories
from xmodal.root.selection import ancestor, build_command


def retry_units(work: CorpusBuild, name: str, kind: str | None = None) -> dict[str, Any]:
    """Makes units again in which rows failed, by `kind` if given; counts the rows that recovered."""
    options, target = work.options, f"{work.corpus.name}/{name}"
    of_media = name not in FILE_SETS and "media" in stages.with_needs([name])
    stage = work.stage(name) if of_media else None
    if of_media and (stage is None or options.storage.size(f"{stage.folder}/stage.json") is None):
        cure = build_command(options.storage.url, work.corpus.name, name)
        raise UserError(f"there is no {target} of these settings: build it first ({cure})")
    if stage is None or not stage.passing:
        raise UserError(f"{target} is made of files: name the corpus, whose failed files are fetched again, then build")
    if kind and kind not in stage.passing:
        raise UserError(f"{kind} is for good: another try of {target} may be spared {', '.join(stage.passing)}")
    commits = Commits(options.storage, stage.folder)
    kinds, units = (kind,) if kind else stage.passing, commits.units(loose=True)  # also those that a kill left half
    tried = {(row, unit.name) for unit in units for row, failed, _ in unit.failures if failed in kinds}
    commits.adopt()
    made_of_it = []
    for made in directories(options.storage) if tried else ():
        source = ancestor(made, stage.name)
        if source and source.folder == stage.folder:
            made_of_it.append(made.folder)
            options.storage.delete(f"{made.folder}/complete.json")  # first: a kill leaves nothing finished of it
    if tried:
        commits.forget({unit for _, unit in tried}, commits.units())
    again = build(stage, options.storage, options.run, options.progress)
    failed = {row for unit in again.units() for row, _, _ in unit.failures}
    rows = {row for row, _ in tried}
    return {"tried": len(rows), "recovered": len(rows - failed), "path": again.where, "unfinished": made_of_it}
