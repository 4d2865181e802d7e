"""Two-Branch's losses with gradients: ours, and their definition as tables of all triplets (anchor, right, wrong).

Between the two is what one would write in torch: a table of all right pairs and all rows.

1,500 pairs: each of 375 things has two visual rows and two texts that all belong together, so that both sides have
neighbours. `python -m tests.benchmarks.all_triplets ours` prints by how many MB the memory of a process grows.

Shapes: A anchors, G rows that they are compared with, N right pairs, K kept of each, D width.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize

from xmodal.batches.batch import ANNOTATED, Batch, Padded, Stream
from xmodal.models import Inputs
from xmodal.models.two_branch import CONSTRAINTS, TwoBranch, TwoBranchConfig
from xmodal.training.optimisers import total

THINGS, WIDTH = 375, 512
BLOCK = 75  # anchors of a table: 169 MB of float32; all 750 would take ten times that
WEIGHTS = CONSTRAINTS | {"visual_neighbours": 0.1}
CONFIG = TwoBranchConfig()


class _Losses(TwoBranch):
    """Takes what it is given as encoded."""

    def encode_together(self, stream: Stream) -> tuple[Tensor, Tensor]:
        return stream.visual.average(), stream.text.average()


def rows() -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    visual, text = (torch.randn(2 * THINGS, WIDTH, generator=random) for _ in range(2))
    return normalize(visual, dim=1).requires_grad_(), normalize(text, dim=1).requires_grad_()


def ours(visual: Tensor, text: Tensor) -> float:
    things = torch.arange(2 * THINGS) // 2
    pairs = (things[:, None] == things).nonzero()
    sides = Padded.whole(visual[:, None]), Padded.whole(text[:, None])
    stream = Stream(*sides, things, things, torch.arange(2 * THINGS), pairs)
    loss = total(_Losses(CONFIG, Inputs(2, 2, 0)).objective(Batch({ANNOTATED: stream})), WEIGHTS)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.item()


def dense(visual: Tensor, text: Tensor) -> float:
    return _by_definition(_of_all_triplets, visual, text)


def by_pairs(visual: Tensor, text: Tensor) -> float:
    return _by_definition(_of_pairs, visual, text)


def _by_definition(term: Callable[..., float], visual: Tensor, text: Tensor) -> float:
    things = torch.arange(2 * THINGS) // 2
    same = things[:, None] == things
    others = same & ~torch.eye(len(same), dtype=torch.bool)
    terms = {
        "visual": (visual, text, same),
        "text": (text, visual, same),
        "visual_neighbours": (visual, visual, others),
        "text_neighbours": (text, text, others),
    }
    return sum(term(*of_term, ~same, WEIGHTS[name]) for name, of_term in terms.items())


def _of_pairs(anchors: Tensor, gallery: Tensor, right_AG: Tensor, wrong_AG: Tensor, weight: float) -> float:
    distances_AG, (anchors_N, right_N) = torch.cdist(anchors, gallery), right_AG.nonzero().unbind(1)
    lacking_NG = (CONFIG.margin + distances_AG[anchors_N, right_N, None] - distances_AG[anchors_N]).clamp(min=0)
    loss = weight * (lacking_NG * wrong_AG[anchors_N]).topk(CONFIG.most or 0, dim=1).values.mean()
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.item()


def _of_all_triplets(anchors: Tensor, gallery: Tensor, right_AG: Tensor, wrong_AG: Tensor, weight: float) -> float:
    """Blocks are freed one by one, after their part of the gradient."""
    distances = torch.cdist(anchors, gallery)
    leaf, found, kept = distances.detach().requires_grad_(), 0.0, int(right_AG.sum()) * (CONFIG.most or 0)
    for start in range(0, len(anchors), BLOCK):
        block = slice(start, start + BLOCK)
        lacking_AGG = (CONFIG.margin + leaf[block, :, None] - leaf[block, None, :]).clamp(min=0)
        is_triplet_AGG = right_AG[block, :, None] & wrong_AG[block, None, :]
        largest_AGK = (lacking_AGG * is_triplet_AGG).topk(CONFIG.most or 0, dim=2).values
        part = weight * largest_AGK.sum() / kept
        part.backward()  # type: ignore[no-untyped-call]
        found += part.item()
    distances.backward(leaf.grad)  # type: ignore[no-untyped-call]
    return found


def growth(act: Callable[[Tensor, Tensor], float]) -> float:
    """In MB, over a process that has the rows."""
    visual, text = rows()
    before = _peak()
    act(visual, text)
    return _peak() - before


def _peak() -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(growth({"ours": ours, "dense": dense, "by_pairs": by_pairs}[sys.argv[1]]))
