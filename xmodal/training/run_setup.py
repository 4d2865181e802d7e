"""The setup of a training or an evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import get_args

from xmodal.batches.annotated_phrases import annotated_phrases
from xmodal.batches.cluster_classes import CLUSTERS
from xmodal.batches.phrase_features import PhraseFeatures
from xmodal.detection.given_boxes import boxes_of_phrases
from xmodal.detection.region_store import RegionStore
from xmodal.errors import UserError
from xmodal.features.frame_store import NAME as FRAMES
from xmodal.features.frame_store import FrameStore
from xmodal.features.opening import describe_network, open_features
from xmodal.features.store import FeatureStore
from xmodal.progress import Progress, Silence
from xmodal.recipes import WRITTEN, Features, Recipe, Tokens, View, clusters_of
from xmodal.records.caption_sources import named_text
from xmodal.root.identity import fingerprint
from xmodal.root.outputs import Output, find, made_of
from xmodal.root.selection import (
    build_command,
    changed_media,
    describe_differences,
    find_output,
    source_of,
)
from xmodal.text.sentence_vectors import Method


@dataclass(frozen=True)
class Setup:
    """Everything that a run works with: `Setup("data", device="cuda")`."""

    root: str
    records: str | None = None  # an identity, where a stage has several outputs
    features: str | None = None
    pixels: str | None = None
    texts: str | None = None  # captions as features, or those that a stage wrote
    vectors: Path | None = None  # the file of word vectors that the recipe names
    weights: Path | None = None  # the file of the features' network, for a phase that trains it
    device: str = "cpu"
    threads: int | None = None  # torch's
    progress: Progress = field(default_factory=Silence)

    def tables(self, corpus: str) -> Output:
        return find_output(self.root, "records", self.records, corpus=corpus)

    def visual(self, recipe: Recipe, tables: Output) -> FeatureStore:
        """Opens the features of the visual side, which must fit the model and be by the network that is named."""
        read = recipe.visual
        return self.store(read.stage, tables, recipe.model, read.network, read.built)

    def store(
        self, stage: str, tables: Output, model: object = None, network: str = "", built: Sequence[str] = ()
    ) -> FeatureStore:
        """Opens features that belong to the records and fit a model's config; warns if their media have changed."""
        identity = self.pixels if stage == "pixels" else self.features
        store = open_features(self.root, stage, identity, tables, model, network, built)
        if change := changed_media(store.output, str(tables.config["corpus"])):
            self.progress.say(f"warning: {change}")
        return store

    def texts_of(self, read: Features, tables: Output, visual: FeatureStore) -> FeatureStore:
        """Opens captions as features; those that say which visual features they are for must be for these."""
        stage, method = read.stage, read.method
        stores = [FeatureStore(one) for one in made_of(tables, stage)]
        made = [store for store in stores if method in ("", store.provenance.get("method"))]
        if method and not made and method not in (known := get_args(Method)):
            raise UserError(f"no method {method!r} of {stage}; there are: {', '.join(known)}")
        fitting = [store.output for store in made if store.provenance.get("for") in (None, visual.output.folder)]
        corpus = str(tables.config["corpus"])
        by_method = f" by {method}" if method else ""
        if not fitting:
            for_these = f" for {visual.output.where}" if made else ""
            settings = [f"codebook.method={method}"] if method else []
            cure = f"build them ({build_command(self.root, corpus, stage, settings)})"
            raise UserError(f"{corpus} in {self.root} has no {stage}{by_method}{for_these}: {cure}")
        chosen = [output for output in fitting if self.texts in (None, output.identity)]
        if len(chosen) == 1:
            return FeatureStore(chosen[0])
        problem = f"has several {stage}{by_method}, so say which by --texts IDENTITY"
        if not chosen:
            problem = f"has no {stage} {self.texts}{by_method} for {visual.output.where}"
        raise UserError(f"{corpus} in {self.root} {problem}; there are: {', '.join(describe_differences(fitting))}")

    def with_named_texts(self, recipe: Recipe, tables: Output) -> Recipe:
        """Names the outputs that captions are read from, so that a run goes on with these alone."""

        def named(view: View) -> View:
            asked = self.texts and isinstance(recipe.text, Tokens) and view.source not in WRITTEN
            text = f"{view.source}/{self.texts}" if asked and view.text == view.source else view.text
            return replace(view, text=named_text(tables, text))

        unannotated = recipe.unannotated and named(recipe.unannotated)
        return replace(recipe, view=named(recipe.view), validation=named(recipe.validation), unannotated=unannotated)

    def clusters(self, recipe: Recipe, tables: Output, features: FeatureStore) -> Output:
        """Finds the classes that k-means made, by these features, of the items that a recipe trains on."""
        count, split = clusters_of(recipe.model), recipe.view.split
        found = [
            output
            for output in made_of(tables, CLUSTERS)
            if (output.config["count"], output.config["split"]) == (count, split)
            and output.about["inputs"][1]["identity"] == features.output.identity
        ]
        if len(found) == 1:
            return found[0]
        corpus, what = recipe.view.corpus, f"{count:,} clusters of {split} by {features.output.where}"
        if found:
            there = ", ".join(describe_differences(found))
            raise UserError(f"{corpus} has several {what}: leave one under {self.root}; there are: {there}")
        settings = [f"clusters.count={count}", f"clusters.split={split}"]
        stage, config = features.output.stage, features.output.config  # else others are built, and clustered
        told = {
            name: str(config[name]) for name in ("network", "model", "weights", "output", "views") if name in config
        }
        settings += [f"{stage}.{name}={value}" for name, value in told.items() if not value.startswith("sha256:")]
        raise UserError(f"no {what}: build it first ({build_command(self.root, corpus, CLUSTERS, settings)})")

    def phrases(self, recipe: Recipe, view: View, tables: Output, *, annotated: bool = False) -> PhraseFeatures:
        """Opens the phrases of a view with their proposals, to learn from also with features of annotated boxes."""
        assert isinstance(recipe.text, Features)
        proposals = RegionStore(self.visual(recipe, tables).output)
        texts = self.texts_of(recipe.text, tables, proposals.store)
        boxes = self.annotated_boxes(proposals.store, tables) if annotated else None
        return PhraseFeatures.of(annotated_phrases(tables, view), texts, proposals, boxes)

    def annotated_boxes(self, proposals: FeatureStore, tables: Output) -> RegionStore:
        """Opens features of the boxes that phrases name, by the network of the proposals; all such are the same."""
        wanted = describe_network(proposals), proposals.spec.dtype, proposals.spec.row_shape
        for output in self._of_annotated_boxes(tables):
            store = FeatureStore(output)
            if (describe_network(store), store.spec.dtype, store.spec.row_shape) == wanted:
                return RegionStore(output)
        corpus, detector = str(tables.config["corpus"]), proposals.output.config.get("detector", "DETECTOR")
        dtype = f"regions.dtype={proposals.spec.dtype}"
        settings = [f"regions.detector={detector}", "regions.boxes=phrases", dtype]
        command = build_command(self.root, corpus, "regions", settings)
        raise UserError(
            f"{corpus} in {self.root} has no features of the boxes that its phrases name, by {wanted[0]} as those of "
            f"{proposals.output.where}: build them ({command}, with the same weights)"
        )

    def has_annotated_boxes(self, tables: Output) -> bool:
        return bool(self._of_annotated_boxes(tables))

    def _of_annotated_boxes(self, tables: Output) -> list[Output]:
        return find(self.root, boxes="phrases", given_boxes=fingerprint(boxes_of_phrases(tables)))

    def pictures(self, features: FeatureStore, tables: Output) -> FeatureStore:
        """Opens what phases of pixels read: the frames that features of clips were made of, else the pixels stage's."""
        from xmodal.training.finetuning import network_of  # torch comes in here

        if not features.spec.ragged:
            return self.store("pixels", tables)
        network = network_of(features)  # refuses regions, which were made of no frames
        frames = source_of(features.output, FRAMES, str(tables.config["corpus"]))
        if self.pixels not in (None, frames.identity):
            raise UserError(
                f"{features.output.where} was made of the frames {frames.identity}, not of {self.pixels}: leave out "
                "--pixels, or name features of those frames by --features"
            )
        if (stored := frames.config["short_side"]) < (seen := network.resize):
            self.progress.say(
                f"the shorter side of stored frames, {stored} pixels, is enlarged to {seen}, as it was for the features"
            )
        return FrameStore(frames)
