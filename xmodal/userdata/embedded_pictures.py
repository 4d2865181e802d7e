"""Embedded pictures of lists get places in archives of the media set."""

import hashlib

FOLDER = "embedded"  # of the media set
MEMBERS, ARCHIVE_BYTES = 4096, 1 << 30  # of an archive


class EmbeddedPictures:
    """Assigns paths in the order in which pictures come. Equal bytes share one path."""

    def __init__(self, folder: str) -> None:
        self._folder, self._paths = folder, dict[bytes, str]()
        self._archive, self._members, self._bytes = 0, 0, 0

    def path(self, content: bytes, ending: str) -> str:
        digest = hashlib.sha256(content).digest()
        if digest not in self._paths:
            if self._members == MEMBERS or self._bytes + len(content) > ARCHIVE_BYTES:
                self._archive, self._members, self._bytes = self._archive + 1, 0, 0
            self._members, self._bytes = self._members + 1, self._bytes + len(content)
            self._paths[digest] = f"{self._folder}/{self._archive:05d}.zip!{digest.hex()[:40]}{ending}"
        return self._paths[digest]
