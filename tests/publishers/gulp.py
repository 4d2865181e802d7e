"""Gulp dumps of a generated world's clips: what xmodal/raw/gulp.py describes, as PVSE's script writes them."""

import io
import json
from collections.abc import Iterable
from pathlib import Path

from PIL import Image

from pipelines.demo.world import Scene, frames


def jpegs(scene: Scene) -> list[bytes]:
    return [_jpeg(Image.fromarray(pixels)) for pixels in frames(scene)]


def write_chunk(folder: str | Path, number: int, clips: Iterable[tuple[str, list[bytes], list[str]]]) -> None:
    """Clips by id, each with its JPEGs, which are there once for each of its sentences."""
    path, told = Path(folder), dict[str, dict[str, list[object]]]()
    path.mkdir(parents=True, exist_ok=True)
    with (path / f"data_{number}.gulp").open("wb") as file:
        for id, pictures, sentences in clips:
            about = told.setdefault(id, {"meta_data": [], "frame_info": []})
            for sentence in sentences:
                about["meta_data"].append({"id": id, "sentence": sentence})
                for picture in pictures:
                    padding = -len(picture) % 4
                    about["frame_info"].append([file.tell(), padding, len(picture) + padding])
                    file.write(picture + bytes(padding))
    (path / f"meta_{number}.gmeta").write_text(json.dumps(told))


def _jpeg(picture: Image.Image) -> bytes:
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=90)
    return data.getvalue()
