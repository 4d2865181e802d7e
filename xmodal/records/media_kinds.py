"""Kinds of media by their file names."""

from xmodal.records.tables import Kind

CLIP_ENDINGS = {
    *(".gif", ".gifv", ".mp4", ".m4v", ".mov", ".qt", ".3gp", ".3g2", ".webm", ".mkv", ".mjpg", ".mjpeg"),
    *(".avi", ".mpg", ".mpeg", ".wmv", ".flv", ".ogv"),  # clips, though no decoder here reads them
}
PICTURE_ENDINGS = {
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm"),
    *(".jp2", ".j2k", ".avif"),  # and .gif, whose first frame is a picture
}


def kind_of(ending: str) -> Kind:
    return "clip" if ending in CLIP_ENDINGS else "image"
