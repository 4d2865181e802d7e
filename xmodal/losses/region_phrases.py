"""Losses of regions and phrases: the four sums of Two-Branch's equation 6, over triplets of algorithm 1.

Shapes: V regions, T phrases, P pairs, D joint width; A pairs of which the region is a target; U pairs of a region and a
chain that it is right for.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from xmodal.batches.batch import TripletStream
from xmodal.losses.triplets import squared_distances

# squared distances of anchors and a gallery, right pairs of both, which are wrong
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
# anchors, their gallery, which are right, which are wrong
NeighbourLoss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def region_phrase_terms(
    stream: TripletStream, visual_VD: Tensor, text_TD: Tensor, offset: float, loss: Loss, neighbour_loss: NeighbourLoss
) -> dict[str, Tensor]:
    """Computes the terms; a region that is right for several phrases has other wrong phrases in each pair."""
    chains_T, pairs_P2 = stream.text_classes, stream.positives
    assert chains_T is not None
    other_TT = chains_T[:, None] != chains_T
    of_regions, of_phrases = (pairs_P2[is_target] for is_target in stream.targets.unbind(1))
    regions_A, phrases_A = of_regions.unbind(1)
    anchors_A2 = torch.stack([torch.arange(len(regions_A), device=regions_A.device), phrases_A], dim=1)
    squared_TV = squared_distances(text_TD, visual_VD, offset)
    regions_U, right_UV, wrong_UV = _neighbours(stream, chains_T)
    return {
        "visual": loss(squared_TV.T[regions_A], anchors_A2, other_TT[phrases_A]),
        "text": loss(squared_TV, of_phrases.flip(1), stream.wrong_regions),
        "visual_neighbours": neighbour_loss(visual_VD[regions_U], visual_VD, right_UV, wrong_UV),
        "text_neighbours": neighbour_loss(text_TD, text_TD, (~other_TT).fill_diagonal_(False), other_TT),
    }


def _neighbours(stream: TripletStream, chains_T: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(U), (U, V), (U, V): right are other regions of the chain, wrong are its wrong ones and other pictures'."""
    regions_P, phrases_P = stream.positives.unbind(1)
    keys = torch.stack([regions_P, chains_T[phrases_P]], dim=1)
    found_U2, places_P = torch.unique(keys, dim=0, return_inverse=True)
    regions_U, chains_U = found_U2.unbind(1)
    phrases_U = torch.zeros_like(regions_U).scatter_reduce(0, places_P, phrases_P, "amin", include_self=False)
    elsewhere_UV = stream.text_items[phrases_U, None] != stream.visual_items
    right_UV = torch.zeros_like(elsewhere_UV)
    one, other = (chains_U[:, None] == chains_U).nonzero().unbind(1)
    right_UV[one, regions_U[other]] = True
    right_UV[torch.arange(len(regions_U), device=regions_U.device), regions_U] = False
    return regions_U, right_UV, stream.wrong_regions[phrases_U] | elsewhere_UV
