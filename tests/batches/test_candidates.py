"""Texts that a batch brings beside its pairs, and epochs of items with one caption each."""

from pathlib import Path
from typing import Any

import pytest
import torch

from pipelines.cli import main
from pipelines.engine.picture_decoder import PictureDecoder
from tests.toy_root import make_root
from tests.toy_root import one_thread as one_thread
from tests.userdata.test_own import picture, write_csv
from xmodal.batches.batch import ANNOTATED, Stream
from xmodal.batches.dataset import open_dataset
from xmodal.batches.loader import Loader
from xmodal.batches.reader import Reader
from xmodal.recipes import Candidates

TEXTS = 7
SPLITS = "train=0.8,test=0.2"
SMALL = ("resnet.network=resnet18", "resnet.weights=random:0", "resnet.resize=32", "resnet.crop=32")
SMALL += ("resnet.output=pooled", "resnet.rows_per_shard=4")


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    return open_dataset(make_root(tmp_path_factory.mktemp("root"), items=60), "pictures").reader("toy/train")


def streams(loader: Loader) -> list[Stream]:
    return [batch.streams[ANNOTATED] for batch in loader]


def test_every_batch_brings_other_texts_with_their_items(reader: Reader) -> None:
    plain = streams(Loader(reader, 16, seed=3))
    seen = list[tuple[int, ...]]()
    for stream, without in zip(streams(Loader(reader, 16, sampler=Candidates(TEXTS), seed=3)), plain, strict=True):
        rows = len(stream.visual)
        assert torch.equal(stream.captions[:rows], without.captions)
        assert torch.equal(stream.visual.values, without.visual.values)
        assert stream.candidates.tolist() == list(range(rows, rows + TEXTS))
        assert not without.has_candidates
        for row in range(rows + TEXTS):
            caption = int(stream.captions[row])
            assert int(stream.text_items[row]) == reader.examples.caption_items[caption]
            words = stream.text.values[row, : stream.text.lengths[row]]
            assert words.tolist() == reader.examples.words[caption].tolist()
        seen.append(tuple(stream.captions[rows:].tolist()))
    assert len(set(seen)) == len(seen)
    assert len({caption for some in seen for caption in some}) > 5 * TEXTS


def test_every_rank_has_all_of_them_and_a_loader_that_goes_on_has_the_same(reader: Reader) -> None:
    whole = streams(Loader(reader, 16, sampler=Candidates(TEXTS)))
    for rank in (0, 1):
        for mine, all_of_it in zip(
            streams(Loader(reader, 16, sampler=Candidates(TEXTS), rank=rank, world=2)), whole, strict=True
        ):
            assert torch.equal(mine.captions[mine.candidates], all_of_it.captions[all_of_it.candidates])
    later = Loader(reader, 16, sampler=Candidates(TEXTS))
    later.load_state_dict({"seed": 0, "epoch": 0, "cursor": 32})
    assert torch.equal(streams(later)[0].captions, whole[2].captions)
    later.set_epoch(1)
    assert not torch.equal(streams(later)[0].captions[16:], whole[0].captions[16:])


def test_an_epoch_may_have_every_item_once(reader: Reader) -> None:
    loader = Loader(reader, 16, captions="one", sampler=Candidates(TEXTS))
    items = torch.cat([stream.visual_items for stream in streams(loader)])
    assert sorted(items.tolist()) == list(range(len(reader.examples.ids)))


def test_no_candidates_are_refused() -> None:
    with pytest.raises(ValueError, match="texts 0 must be a whole number, 1 or more"):
        Candidates(0)


def test_texts_of_other_corpora_are_not_needed(tmp_path: Path) -> None:
    """A corpus of few captions has the same one several times."""
    few = open_dataset(make_root(tmp_path, items=12), "pictures").reader("toy/val")
    (stream,) = streams(Loader(few, 16, sampler=Candidates(40)))
    assert len(stream.candidates) == 40
    assert set(stream.text_items[stream.candidates].tolist()) <= set(range(len(few.examples.ids)))


def test_mining_meets_the_rows_of_a_list_that_grew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of the earlier list are taken over to other places: texts and pictures still belong together."""
    decoded, decode = list[bytes](), PictureDecoder.decode

    def counted(self: PictureDecoder, data: bytes, *rest: Any) -> Any:
        decoded.append(data)
        return decode(self, data, *rest)

    monkeypatch.setattr(PictureDecoder, "decode", counted)
    grown, whole = tmp_path / "grown", tmp_path / "whole"
    for root, numbers in ((grown, range(1, 30, 2)), (grown, range(30)), (whole, range(30))):
        write_csv(tmp_path / "mylist.csv", listed(tmp_path, numbers))
        command = ["build", str(tmp_path / "mylist.csv/resnet"), "--root", str(root), "--splits", SPLITS, "--quiet"]
        assert main([*command, *(word for setting in SMALL for word in ("--set", setting))]) == 0
    reader, fresh = (open_dataset(str(root), "mylist").reader("own/train", "resnet") for root in (grown, whole))
    assert reader.store.output.totals["counts"]["rows"] == 30
    assert len(decoded) == 15 + 15 + 30  # the first list's rows were not made again
    told = dict(zip(fresh.examples.caption_ids, fresh.examples.caption_items.tolist(), strict=True))
    for stream in streams(Loader(reader, 4, sampler=Candidates(TEXTS))):
        ids = [reader.examples.ids[item] for item in stream.visual_items.tolist()]
        assert torch.equal(stream.visual.values[:, 0], torch.from_numpy(fresh.store.read(ids)))
        for row, caption in enumerate(stream.captions.tolist()):
            item = fresh.examples.ids[told[reader.examples.caption_ids[caption]]]
            assert reader.examples.ids[int(stream.text_items[row])] == item


def listed(folder: Path, numbers: range) -> list[dict[str, str]]:
    """Pictures by number with three captions each."""
    for number in numbers:
        (folder / f"p{number:03d}.png").write_bytes(picture(number))
    return [{"url": f"p{n:03d}.png", "caption": f"a thing {n} {text}"} for n in numbers for text in range(3)]
