"""Scenes as picture files: JPEGs of still ones, GIFs of moving ones."""

import io

from PIL import Image

from pipelines.demo.world import Scene, draw, frames

MILLISECONDS_A_FRAME = 120


def jpeg(scene: Scene, grayscale: bool = False) -> bytes:
    image, data = Image.fromarray(draw(scene)), io.BytesIO()
    (image.convert("L") if grayscale else image).save(data, "JPEG", quality=90)
    return data.getvalue()


def gif(scene: Scene) -> bytes:
    """An endless GIF. All frames share one palette, so that nothing flickers."""
    pictures = [Image.fromarray(pixels) for pixels in frames(scene)]
    palette = pictures[0].quantize(256)
    first, *rest = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    data = io.BytesIO()
    first.save(data, "GIF", save_all=True, append_images=rest, duration=MILLISECONDS_A_FRAME, loop=0)
    return data.getvalue()
