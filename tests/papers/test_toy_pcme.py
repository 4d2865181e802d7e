"""The two-dimensional toy: what fits several classes is embedded wider, nearer to all of them, and drawn so."""

import numpy as np
import pytest
import torch

from examples.toy_pcme import CLASSES, PALETTE, Toy, draw, toy
from tests.toy_root import one_thread as one_thread


@pytest.fixture(scope="module")
def found() -> Toy:
    return toy(seed=0)


def test_captions_are_there_of_every_ambiguity(found: Toy) -> None:
    assert found.captions.fits.sum(1).tolist() == [1] * CLASSES + [3] * 6 + [CLASSES]
    assert found.images.fits.sum(1).tolist() == [1] * 4 * CLASSES + [2] * 36


def test_what_fits_several_classes_is_less_certain(found: Toy) -> None:
    for points in (found.images, found.captions):
        assert points.sigma[~points.pure].mean() > 1.5 * points.sigma[points.pure].mean()
    by_ambiguity = [found.captions.sigma[found.captions.fits.sum(1) == count].mean() for count in (1, 3, CLASSES)]
    assert by_ambiguity == sorted(by_ambiguity)


def test_classes_find_places_of_their_own_which_both_modalities_share(found: Toy) -> None:
    images, captions = found.images, found.captions
    nearest = torch.cdist(images.items.mean[images.pure], captions.items.mean[:CLASSES]).argmin(1)
    assert (nearest == images.fits[images.pure].int().argmax(1)).float().mean() > 0.9


def test_the_generic_caption_covers_every_class(found: Toy) -> None:
    mean, sigma = found.captions.items.mean, found.captions.items.log_sigma.exp()
    inside = ((mean[:CLASSES] - mean[-1]) / sigma[-1]).square().sum(1) < -2 * np.log(0.01)
    assert inside.all()


def test_training_lowers_the_loss_and_a_seed_decides_it() -> None:
    first, again, other = toy(seed=1, steps=60), toy(seed=1, steps=60), toy(seed=2, steps=60)
    assert first.losses == again.losses
    assert first.losses != other.losses
    assert np.mean(first.losses[-10:]) < np.mean(first.losses[:10])


def test_the_picture_has_every_class_in_both_panels_and_the_generic_caption_in_one(found: Toy) -> None:
    picture = draw(found, side=300)
    assert picture.size == (601, 300)
    panels = [np.asarray(picture.crop((left, 0, left + 300, 300))).reshape(-1, 3) for left in (0, 301)]
    colours = [{"#" + bytes(pixel).hex() for pixel in np.unique(panel, axis=0)} for panel in panels]
    for shown in colours:
        assert shown >= {*PALETTE, "#c8c8c8"}
    assert ["#d62728" in shown for shown in colours] == [False, True]
