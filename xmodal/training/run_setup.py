"""The setup of a training or an evaluation."""

from dataclasses import dataclass, field
from pathlib import Path

from xmodal.errors import UserError
from xmodal.features.frame_store import NAME as FRAMES
from xmodal.features.frame_store import FrameStore
from xmodal.features.opening import open_features
from xmodal.features.store import FeatureStore
from xmodal.progress import Progress, Silence
from xmodal.root.outputs import Output, made_of
from xmodal.root.selection import (
    build_command,
    changed_media,
    describe_differences,
    find_output,
    source_of,
)


@dataclass(frozen=True)
class Setup:
    """Everything that a run works with: `Setup("data", device="cuda")`."""

    root: str
    records: str | None = None  # an identity, where a stage has several outputs
    features: str | None = None
    pixels: str | None = None
    texts: str | None = None  # captions as features
    vectors: Path | None = None  # the file of word vectors that the recipe names
    weights: Path | None = None  # the file of the features' network, for a phase that trains it
    device: str = "cpu"
    threads: int | None = None  # torch's
    progress: Progress = field(default_factory=Silence)

    def tables(self, corpus: str) -> Output:
        return find_output(self.root, "records", self.records, corpus=corpus)

    def store(self, stage: str, tables: Output, model: object = None) -> FeatureStore:
        """Opens features that belong to the records and fit a model's config; warns if their media have changed."""
        identity = self.pixels if stage == "pixels" else self.features
        store = open_features(self.root, stage, identity, tables, model)
        if change := changed_media(store.output, str(tables.config["corpus"])):
            self.progress.say(f"warning: {change}")
        return store

    def texts_of(self, stage: str, tables: Output, visual: FeatureStore) -> FeatureStore:
        """Opens captions as features; those that say which visual features they are for must be for these."""
        made = [FeatureStore(one) for one in made_of(tables, stage) if self.texts in (None, one.identity)]
        fitting = [store.output for store in made if store.provenance.get("for") in (None, visual.output.folder)]
        corpus = str(tables.config["corpus"])
        if not fitting:
            for_these = f" for {visual.output.where}" if made else ""
            cure = f"build them ({build_command(self.root, corpus, stage)})"
            raise UserError(f"{corpus} in {self.root} has no {stage}{for_these}: {cure}")
        if len(fitting) > 1:
            there = ", ".join(describe_differences(fitting))
            raise UserError(
                f"{corpus} in {self.root} has several {stage}, so say which by --texts IDENTITY; there are: {there}"
            )
        return FeatureStore(fitting[0])

    def pictures(self, features: FeatureStore, tables: Output) -> FeatureStore:
        """Opens what phases of pixels read: the frames that features of clips were made of, else the pixels stage's."""
        from xmodal.training.finetuning import network_of  # torch comes in here

        if not features.spec.ragged:
            return self.store("pixels", tables)
        frames = source_of(features.output, FRAMES, str(tables.config["corpus"]))
        if self.pixels not in (None, frames.identity):
            raise UserError(
                f"{features.output.where} was made of the frames {frames.identity}, not of {self.pixels}: leave out "
                "--pixels, or name features of those frames by --features"
            )
        if (stored := frames.config["short_side"]) < (seen := network_of(features).resize):
            self.progress.say(
                f"the shorter side of stored frames, {stored} pixels, is enlarged to {seen}, as it was for the features"
            )
        return FrameStore(frames)
