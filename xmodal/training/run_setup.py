"""The setup of a training or an evaluation."""

from dataclasses import dataclass, field
from pathlib import Path

from xmodal.features.opening import open_features
from xmodal.features.store import FeatureStore
from xmodal.progress import Progress, Silence
from xmodal.root.outputs import Output
from xmodal.root.selection import changed_media, find_output


@dataclass(frozen=True)
class Setup:
    """Everything that a run works with: `Setup("data", device="cuda")`."""

    root: str
    records: str | None = None  # an identity, where a stage has several outputs
    features: str | None = None
    pixels: str | None = None
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
