"""Published scenes: scenes of a generated world as the items of a publisher."""

import hashlib
from dataclasses import dataclass

from pipelines.demo.world import Scene, World


@dataclass(frozen=True)
class PublishedScene:
    """One scene with its world. Publishers derive ids, addresses and captions from it."""

    scene: Scene
    world: World

    @property
    def digest(self) -> str:
        return hashlib.md5(f"{self.scene.seed} {self.scene.index}".encode(), usedforsecurity=False).hexdigest()

    @property
    def gone(self) -> bool:
        """Whether a clip can no longer be fetched."""
        return self.scene.index % 17 == 12
