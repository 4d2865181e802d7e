"""The process that chaos kills: builds two toy stages on Ray. Arguments: root, workers, a cluster's address."""

import sys

from pipelines.engine.building import build
from pipelines.engine.ray_runner import RayRunner, disconnect
from pipelines.engine.stage import Stage
from tests.toy_stages import Letters, Words, letters, words
from xmodal.root.storage import open_storage


def work() -> Stage[Words, str]:
    return words(letters(Letters(40, seconds=0.03)), Words())


if __name__ == "__main__":
    root, workers, *address = sys.argv[1:]
    build(work(), open_storage(root), RayRunner(int(workers), address[0] if address else None))
    disconnect()
