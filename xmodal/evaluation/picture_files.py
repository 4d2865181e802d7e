"""The pictures of a corpus, by item; what cannot be shown is one line that names the item."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from PIL.Image import Image

from xmodal.errors import UserError
from xmodal.media.images import UnreadableImage, open_image
from xmodal.raw.archives import Archives, MissingMedia
from xmodal.raw.raw_files import raw_of
from xmodal.records.tables import Item, read_rows
from xmodal.root.outputs import Output

P = TypeVar("P")


class UnshownPicture(UserError):
    """A picture that is absent or cannot be read."""


@dataclass(frozen=True, eq=False)
class PictureFiles:
    paths: Mapping[str, str]  # by item
    archives: Archives
    again: str  # how an absent picture is fetched

    @classmethod
    def of(cls, records: Output, media: Output) -> "PictureFiles":
        corpus, root = shlex.quote(str(records.config["corpus"])), shlex.quote(records.storage.url)
        again = f"`xmodal retry {corpus} --root {root}`, then `xmodal seal {corpus} --root {root}`"
        return cls({item.id: item.media for item in read_rows(records, Item)}, Archives(raw_of(media)), again)

    def first(self, ids: Sequence[str], count: int, say: Callable[[str], None]) -> Iterator[tuple[str, Image]]:
        """Opens the first pictures that there are, and says how many others it left out."""
        left_out, opened = list[UnshownPicture](), 0
        for id in ids:
            if opened == count:
                break
            try:
                picture = self.open(id)
            except UnshownPicture as error:
                left_out.append(error)
                continue
            opened += 1
            yield id, picture
        if left_out and not opened:
            raise left_out[0]
        if left_out:
            say(f"pictures left out: {len(left_out):,}; {left_out[0]}")

    def open(self, id: str) -> Image:
        """Opens a picture as it is; of a broken one what there is."""
        return self.decoded(id, lambda data: open_image(data, on_truncated=lambda why: None))

    def decoded(self, id: str, decode: Callable[[bytes], P]) -> P:
        try:
            return decode(self.archives.read(self.paths[id]))
        except MissingMedia as error:
            cure = f"name others with --items, or fetch it ({self.again})"
            raise UnshownPicture(f"the picture of {id} is absent ({error}): {cure}") from error
        except UnreadableImage as error:
            raise UnshownPicture(f"the picture of {id} cannot be read ({error}): name others with --items") from error
