"""Kinds of media by their file names."""

from xmodal.records.tables import Kind

CLIP_ENDINGS = {
    *(".gif", ".gifv", ".mp4", ".m4v", ".mov", ".qt", ".3gp", ".3g2", ".webm", ".mkv", ".mjpg", ".mjpeg"),
    *(".avi", ".mpg", ".mpeg", ".wmv", ".flv", ".ogv"),  # clips, though no decoder here reads them
}


def kind_of(ending: str) -> Kind:
    return "clip" if ending in CLIP_ENDINGS else "image"
