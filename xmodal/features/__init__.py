"""Features: the Zarr store, foreign formats, and the networks that fill the store."""

from xmodal.features.store import FeatureStore

__all__ = ["FeatureStore"]
