"""Feature export: writes a feature store as .npy, HDF5, tar or npz files."""

import io
import os
import shlex
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.lib import format as npy
from numpy.typing import NDArray

from pipelines.engine.progress_line import ProgressLine
from xmodal.detection.region_arrays import are_lines
from xmodal.detection.region_formats import RegionsToWrite, holds_words, names_beside, writer_for
from xmodal.detection.region_store import PictureRegions, RegionStore, regions_file
from xmodal.errors import UserError
from xmodal.features.foreign_formats import BLOCK, COPIES, read_ids, refuse_twice
from xmodal.features.frame_store import clips_file
from xmodal.features.store import FeatureStore
from xmodal.raw.array_files import HDF5, open_hdf5
from xmodal.recipes import View
from xmodal.records.views import captions_by_item, splits
from xmodal.root.outputs import Output, find
from xmodal.root.selection import build_command, changed_media, find_output, may_share_media, media_set_of


@dataclass(frozen=True)
class Export:
    """Some items of a feature store; `tick` counts those that were read."""

    store: FeatureStore
    ids: Sequence[str]
    tick: Callable[[int], None]

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Blocks of rows; for a ragged array, one item each."""
        store, rows = self.store, self.store.rows(self.ids)
        length = 1 if store.spec.ragged else max(1, BLOCK // store.spec.row_bytes)
        for start in range(0, len(rows), length):
            block = rows[start : start + length]
            yield store.take_padded(block)[0] if store.spec.ragged else store.take(block)
            self.tick(len(block))

    def items(self) -> Iterator[tuple[str, NDArray[Any]]]:
        blocks = self.blocks()
        values = blocks if self.store.spec.ragged else (row for block in blocks for row in block)
        return zip(self.ids, values, strict=True)

    def regions(self, store: RegionStore) -> RegionsToWrite:
        table = store.table
        known = (bool(pc.sum(pc.list_value_length(table[f"{kind}_ids"])).as_py()) for kind in ("class", "attribute"))
        lengths = store.store.lengths(store.store.rows(self.ids))
        spec = store.store.spec
        return RegionsToWrite(self._pictures(store), self.ids, lengths, spec.row_shape[0], spec.dtype, *known)

    def _pictures(self, store: RegionStore) -> Iterator[PictureRegions]:
        for id in self.ids:
            yield store.picture(id)
            self.tick(1)


def export_features(
    features: str,
    out: Path,
    array: str | None,
    ids: Path | None,
    split: str | None,
    corpus: str | None,
    show: ProgressLine,
) -> dict[str, Any]:
    """Exports features in the format of the name `out`: x.npy, x.h5, x.tar, or a folder with an npz an item.

    Regions of a detector are written with their boxes, as `xmodal/detection/region_formats.py` says; to x.tar without.
    Their words lie beside, a line each, in x.tsv.objects_vocab.txt and x.tsv.attributes_vocab.txt.
    The items are those of a split or a file of ids, in its order, or all; absent ones are left out. Beside x.npy lies
    x_ids.txt, an id a line; beside x_ims.npy of a split x_caps.txt, too, as SCAN reads it: line i is of row i // 5.
    """
    if corpus and not split:
        raise UserError("--corpus says whose the split is: name that with --split")
    store = FeatureStore(features, array)
    is_of_regions = regions_file(0) in store.output.files and store.spec.name == store.names[0]
    regions = RegionStore(store.output) if is_of_regions else None
    if change := changed_media(store.output, corpus or _corpus_of(store.output)):
        show.say(f"warning: {change}")
    wanted, records = _items_wanted(store, ids, split, corpus)
    present = [id for id in wanted if id not in store.absent]
    words, lost = _words(regions, out) if regions else ({}, [])
    lines = _lines_of_items(present, records, split, out) | words
    regions = regions if writer_for(out) else None
    beside = (*lines, *(names_beside(out) if regions else ()))
    _refuse_to_export(store, present, out, beside, regions is not None)
    with show.over("export", total=len(present), unit="items") as tick:
        _write(Export(store, present, tick), regions, out, lines, beside)
    return {
        "path": str(out),
        "beside": list(beside),
        "items": len(present),
        "absent": len(wanted) - len(present),
        "lost": lost,
        "dtype": store.spec.dtype,
        "row_shape": list(store.spec.row_shape),
        "ragged": store.spec.ragged,
    }


def _items_wanted(
    store: FeatureStore, ids: Path | None, split: str | None, corpus: str | None
) -> tuple[Sequence[str], Output | None]:
    """The ids of a split with the records that it is in; else of a file, or all."""
    wanted = read_ids(ids) if ids else store.ids
    if not split:
        return wanted, None
    named: dict[str, Any] = {"corpus": corpus} if corpus else {}
    records = find_output(store.output.storage.url, "records", fits=partial(may_share_media, store.output), **named)
    there = splits(records)
    if split not in there:
        raise UserError(f"there is no split {split!r}; there are: {', '.join(sorted(there))}")
    return there[split], records


def _lines_of_items(
    ids: Sequence[str], records: Output | None, split: str | None, out: Path
) -> dict[str, Sequence[str]]:
    """The lines of files beside an .npy: its ids, and captions beside x_ims.npy of a split."""
    lines: dict[str, Sequence[str]] = {f"{out.stem}_ids.txt": ids} if out.suffix == ".npy" else {}
    if records and split and out.name.endswith("_ims.npy"):
        lines[f"{out.name.removesuffix('_ims.npy')}_caps.txt"] = _five_captions(records, split, ids)
    return lines


def _words(regions: RegionStore, out: Path) -> tuple[dict[str, Sequence[str]], list[str]]:
    """The lines of files of words beside `out`, and what of the regions is lost in its format."""
    words, lost = dict[str, Sequence[str]](), list[str]() if writer_for(out) else ["boxes"]
    for kind, file, known in (
        ("class", "objects_vocab", regions.words.classes),
        ("attribute", "attributes_vocab", regions.words.attributes),
    ):
        if not len(pc.list_flatten(regions.table[f"{kind}_ids"])):
            continue
        if not holds_words(out):
            lost.append({"class": "classes", "attribute": "attributes"}[kind])
        elif not are_lines(known):
            lost.append(f"words of {kind} (they are no lines of small letters, each once)")
        elif known:
            words[f"{out.name}.{file}.txt"] = known
    return words, lost


def _corpus_of(features: Output) -> str:
    records = find(features.storage.url, "records", media_set=media_set_of(features))
    return str(records[0].config["corpus"]) if records else "CORPUS"


def _write(
    export: Export,
    regions: RegionStore | None,
    out: Path,
    lines: Mapping[str, Sequence[str]],
    beside: Sequence[str],
) -> None:
    write_regions = writer_for(out)
    writers = {".npy": _write_npy, ".tar": _write_tar, "": _write_folder} | dict.fromkeys(HDF5, _write_hdf5)
    try:
        with TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as folder:
            for name, texts in lines.items():
                Path(folder, name).write_text("".join(f"{text}\n" for text in texts), "utf-8")
            if regions and write_regions:
                write_regions(Path(folder, out.name), export.regions(regions))
            else:
                writers[out.suffix](Path(folder, out.name), export)
            for name in (*beside, out.name):  # `out` last
                Path(folder, name).rename(out.with_name(name))
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror or error}") from error


def _five_captions(records: Output, split: str, ids: Sequence[str]) -> list[str]:
    captions = captions_by_item(records, View(records.config["corpus"], split))
    texts, lines = captions.grouped(captions.texts), list[str]()
    for id in ids:
        if len(texts[id]) < COPIES:
            raise UserError(f"{id!r} has {len(texts[id])} captions, but SCAN's files have {COPIES} of each item")
        lines += [" ".join(text.split()) for text in texts[id][:COPIES]]
    return lines


def _refuse_to_export(
    store: FeatureStore, ids: Sequence[str], out: Path, beside: Iterable[str], with_boxes: bool
) -> None:
    if out.suffix == ".tsv" and not with_boxes:
        raise UserError(f"{out}: a .tsv is of regions with boxes, which {store.output.where} has not")
    if out.suffix not in ("", ".npy", ".tsv", ".tar", *HDF5):
        raise UserError(
            f"{out}: give x.npy, x.h5, x.tar, of regions x.tsv, or x without an ending, a folder with an npz an item"
        )
    if not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent} to write {out.name} to: make it, or give another name")
    for path in (out, *map(out.with_name, beside)):
        if os.path.lexists(path):
            raise UserError(f"{path} is there already: move it away, or give another name")
    if not ids:
        raise UserError(f"{store.output.where} has none of these items: there is nothing to export")
    if clips_file(0) in store.output.files:
        corpus, root = _corpus_of(store.output), store.output.storage.url
        look = (
            f"`xmodal look {corpus} --frames {shlex.quote(f'{corpus}-frames')} --root {shlex.quote(root)}` draws them"
        )
        ways = f"{look}, xmodal.features.frame_store.FrameStore reads them, {build_command(root, corpus, 'clips')}"
        raise UserError(
            f"{store.output.where} holds the JPEGs of clips, which are no features: {ways} makes features of them"
        )
    refuse_twice(ids, out)
    if store.spec.ragged and out.suffix == ".npy" and not with_boxes:
        scan = "x_ims.npy, " if regions_file(0) in store.output.files else ""
        raise UserError(f"{store.spec.name} is ragged, which no .npy can be: export to {scan}x.h5, x.tar or a folder")
    if id := next((id for id in ids if not _can_hold(out.suffix, id)), None):
        why = ""
        if out.suffix == ".tar" and "." in id.rpartition("/")[2]:
            why = ", as readers of a .tar end a name at its first dot"
        raise UserError(f"id {id!r} cannot be written to {out}: {_ways_out(store, ids)}{why}")


def _ways_out(store: FeatureStore, ids: Sequence[str]) -> str:
    """The formats that hold all of these ids."""
    names = {".h5": "x.h5", ".npy": "x.npy", "": "a folder"}
    if store.spec.ragged:
        del names[".npy"]
    *others, last = [name for suffix, name in names.items() if all(_can_hold(suffix, id) for id in ids)] or [""]
    return f"export to {' or '.join(filter(None, (', '.join(others), last)))}" if last else "no format holds these ids"


def _can_hold(suffix: str, id: str) -> bool:
    if suffix == ".tsv":
        return not set("\t\r\n") & set(id)
    if suffix in HDF5:
        return "\0" not in id  # HDF5 ends text there
    if suffix == ".npy":
        return "\n" not in id and id == id.strip()
    *folders, name = id.split("/")
    if suffix == ".tar" and "." in name:
        return False  # readers end a name at its first dot
    plain = id.isprintable() and not set("\\:") & set(id) and all(part and part[0] != "." for part in (*folders, name))
    return plain and max(len(part.encode()) for part in (*folders, f"{name}.npz")) <= 255


def _write_npy(path: Path, export: Export) -> None:
    spec = export.store.spec
    about = {"descr": npy.dtype_to_descr(np.dtype(spec.dtype)), "fortran_order": False}
    with path.open("xb") as file:
        npy.write_array_header_1_0(file, {**about, "shape": (len(export.ids), *spec.row_shape)})
        for block in export.blocks():
            file.write(block.data)


def _write_hdf5(path: Path, export: Export) -> None:
    store, ids = export.store, export.ids
    lengths = store.lengths(store.rows(ids)) if store.spec.ragged else np.ones(len(ids), np.int64)
    with open_hdf5(path, "x") as file:
        file["ids"] = np.array(ids, object)
        if store.spec.ragged:
            file["offsets"] = np.concatenate([[0], np.cumsum(lengths)])
        features = file.create_dataset("features", (int(lengths.sum()), *store.spec.row_shape), store.spec.dtype)
        row = 0
        for block in export.blocks():
            features[row : row + len(block)] = block
            row += len(block)


def _write_tar(path: Path, export: Export) -> None:
    with tarfile.open(path, "x") as archive:
        for id, values in export.items():
            data = io.BytesIO()
            npy.write_array(data, values, (1, 0), allow_pickle=False)
            member = tarfile.TarInfo(f"{id}.npy")
            member.size = data.tell()
            data.seek(0)
            archive.addfile(member, data)


def _write_folder(path: Path, export: Export) -> None:
    path.mkdir()
    for id, values in export.items():
        file = path / f"{id}.npz"
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez(file, features=values)
