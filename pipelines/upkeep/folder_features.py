"""Features of a folder of pictures or clips: one store that grows with the folder.

    STORE/zarr.json, …        an output as a stage makes it, but of any name
    STORE/_runs/              the root that it is built in: checksums of the files, frames of clips, what is under way
    STORE/_runs/folder.json   what stays the same: the folder, the stages and their settings
    STORE/_runs/stage.json    that of the output

Another state of the folder is another output, which takes over the rows of the one before, and then its place.
"""

import errno
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pipelines import stages
from pipelines.engine.build_options import BuildOptions
from pipelines.engine.building import build
from pipelines.engine.commits import Commits
from pipelines.engine.stage import Stage, without_lists
from pipelines.engine.stage_kind import GivenFiles, Needs, StageKind
from pipelines.engine.typed_settings import apply, nearest, parse_settings
from pipelines.fetching.folder_files import NAMES, FolderFiles, open_files, seal_files
from pipelines.stage_forms.region_stages import WITHOUT_AREA, check_detector
from pipelines.stages import FILE_SETS
from pipelines.upkeep.inspection import forget, verify
from pipelines.upkeep.machine import how_to_install_missing
from xmodal.detectors import KINDS
from xmodal.errors import UserError, few
from xmodal.features.frame_store import cut_clips
from xmodal.features.image_models import check_model_name
from xmodal.features.store import FeatureStore
from xmodal.features.torchvision_models import BILLIONS
from xmodal.records.tables import Item, Kind
from xmodal.root.files import sha256_of
from xmodal.root.identity import canonical_json, to_plain
from xmodal.root.outputs import TRUNCATED, Output, Unit, directories
from xmodal.root.storage import LocalStorage, Storage

RUNS, NOTE, MADE, UNITS, COMPLETE = "_runs", "folder.json", "stage.json", "units.tsv", "complete.json"
MARKER = f"{RUNS}/{NOTE}"
ANOTHER = "name another store with --out"
DETECTING = ("regions", "proposals")
OTHERS = (  # names beside torchvision's, as a user types them
    *("bottom-up-36", "bottom-up-10-100", "small", "proposals"),
    *("timm/NAME", "transformers/ORGANISATION/NAME", "torchvision/fasterrcnn_…", "detectron2/CONFIG"),
)
# torchvision has models of whole images, too
OWN_NAMES = "|".join(name.replace("_", "[-_]") for name in KINDS if name != "torchvision")
DETECTOR = re.compile(
    rf"(?P<detector>({OWN_NAMES})(/.+?)?|torchvision/fasterrcnn\w*?)(-(?P<fewest>\d+)(-(?P<most>\d+))?)?"
)


def check_name(model: str) -> None:
    """Refuses the name of no model before a folder is walked; its weights are looked at with the other settings."""
    own = _regions(model)
    if own is None and "/" not in model and model not in BILLIONS:
        there = (*BILLIONS, *OTHERS)
        meant = nearest(model, {name: name for name in there})
        raise UserError(f"no model {model!r}{meant}; there are: {', '.join(there)}")
    config = _named(model, *(own or _features(model, "image")))
    if own is None:
        check_model_name(config.model)
    else:
        check_detector(config, {"detector": Path()})  # as if weights were given


def settings_of(model: str, kind: Kind, texts: Sequence[str]) -> tuple[str, dict[str, object]]:
    """The stage that makes rows of the kind, and what the model and --set say."""
    target, own = _regions(model) or _features(model, kind)
    if target in DETECTING and kind != "image":
        raise UserError(f"--model {model} finds regions of pictures, not of clips")
    kinds = kinds_of(target)
    configs = {kind.name: kind.config() for kind in kinds} | {target: _named(model, target, own)}
    told = parse_settings([*texts], configs, [target], [file for kind in kinds for file in kind.files])
    if twice := [name for name in told if name in own and name != f"{target}.output"]:
        raise UserError(f"--model {model} says {few(twice, 3)} already: leave out --set, or name another model")
    return target, own | told


def _named(model: str, target: str, own: Mapping[str, object]) -> Any:
    """The usual settings of a stage, with those that the model's name says."""
    try:
        return apply(stages.load(target).config(), target, own)
    except ValueError as error:
        raise UserError(f"--model {model}: {error}") from None


def _features(model: str, kind: Kind) -> tuple[str, dict[str, object]]:
    target = {"image": "features", "clip": "clip_features"}[kind]
    name = model if "/" in model else f"torchvision/{model}"
    output: dict[str, object] = {f"{target}.output": "fc7"} if name.startswith("torchvision/vgg") else {}  # they alone
    return target, {f"{target}.model": name} | output


def _regions(model: str) -> tuple[str, dict[str, object]] | None:
    """Reads bottom-up, bottom-up-36, bottom-up-10-100, proposals, torchvision/fasterrcnn_…; None for image models."""
    found = DETECTOR.fullmatch(model)
    if not found:
        return None
    library, slash, rest = found["detector"].partition("/")
    detector = f"{library.replace('-', '_')}{slash}{rest}"
    if library == "proposals":
        return library, {"proposals.detector": detector} if rest else {}
    own: dict[str, object] = {"regions.detector": detector}
    if found["fewest"]:
        fewest = int(found["fewest"])
        own |= {"regions.fewest": fewest, "regions.most": int(found["most"] or fewest)}
    return "regions", own


def kinds_of(target: str) -> list[StageKind]:
    """The stages from a folder's files to the target."""
    return [stages.load(name) for name in stages.with_needs([target]) if name not in (*FILE_SETS, "records")]


def make_store(files: FolderFiles, out: Path, target: str, options: BuildOptions) -> dict[str, Any]:
    """Brings the store of a folder up to date; the root of `options` is STORE/_runs."""
    for kind in kinds_of(target):
        if kind.check:
            kind.check(apply(kind.config(), kind.name, options.settings), options.files)
        if (cures := how_to_install_missing(kind.packages)) and not _output(out).complete:
            raise UserError(f"features of {files.folder} cannot be built here: {cures}")
    _refuse_foreign(out, files.folder)
    with _alone(out):
        made, root = _stages(files, target, options), options.storage
        note: dict[str, Any] = {"folder": files.folder, "stages": {stage.name: _decides(stage) for stage in made}}
        _refuse_others(out, note)
        if _note(out) != note:
            root.write(NOTE, canonical_json(note))
        damaged = _damaged(out)
        if is_old := bool(damaged) or not _is_up_to_date(out, made, root):
            options.progress.say(f"features of {len(files.paths):,} {NAMES[files.kind]} of {files.folder} go to {out}")
            _lend(out)
            if damaged and _is_whole(out):
                forget(root, verify(root, options.progress)[1])
            _forget_passing(made, root)
            _publish(build(made[-1], root, options.run, options.progress), out)
        _sweep(made, root)
        return _describe(_outputs(out, made, root), files) | {"built": is_old, "repaired": _repaired(damaged)}


def _refuse_foreign(out: Path, folder: str) -> None:
    if not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent} to make {out.name} in: make it, or {ANOTHER}")
    before = _note(out).get("folder")
    is_new = not os.path.lexists(out) or (out.is_dir() and {*os.listdir(out)} <= {RUNS})
    if not before and not is_new:
        raise UserError(f"{out} is there already and is no store of a folder's features: {ANOTHER}")
    if before and os.path.isdir(before) and not os.path.samefile(before, folder):
        raise UserError(f"{out} has features of {before}, not of {folder}: {ANOTHER}")


def _refuse_others(out: Path, now: dict[str, Any]) -> None:
    before = _note(out) or now
    if {*before["stages"]} != {*now["stages"]}:
        raise UserError(f"{out} was made by the stages {', '.join(before['stages'])}: {ANOTHER}")
    for name, (version, config) in now["stages"].items():
        version_before, config_before = before["stages"][name]
        if differing := [one for one in config if config.get(one) != config_before.get(one)]:
            plain = {one: value for one in differing if not isinstance(value := config_before.get(one), dict)}
            there = few([f"{one}={value}" for one, value in plain.items()] or differing, 5)
            raise UserError(f"{out} has features by other settings ({there}): {ANOTHER}")
        if version != version_before:
            raise UserError(f"{out} was made by another version of xmodal: {ANOTHER}, or remove it")


def _note(out: Path) -> dict[str, Any]:
    """Reads folder.json; {} if it is damaged, as a store without one is left alone."""
    note = _read(out, NOTE)
    match note:
        case {"folder": str(), "stages": {**made}} if all(map(_is_decided, made.values())):
            return note
    return {}


def _is_decided(made: object) -> bool:
    match made:
        case [int(), {}]:
            return True
    return False


def _read(out: Path, name: str) -> dict[str, Any]:
    try:
        found = json.loads(Path(out, RUNS, name).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Keeps other processes out of the store; a kill lets them in. Refused work that made no unit leaves nothing."""
    is_new = not out.exists()
    try:
        Path(out, RUNS).mkdir(parents=True, exist_ok=True)
        for folder in (out, out / RUNS):
            if not os.access(folder, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error.strerror}): {ANOTHER}") from error
    lock = os.open(out / RUNS, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another process is at work on {out}: wait until it is done, or {ANOTHER}") from None
        try:
            yield
        except UserError:
            if {*os.listdir(out)} == {RUNS} and not _has_units(out):
                shutil.rmtree(out if is_new else out / RUNS)
            raise
    finally:
        os.close(lock)


def _stages(files: FolderFiles, target: str, options: BuildOptions) -> list[Stage[Any, Any]]:
    media = seal_files(options.storage, files, options.progress)
    items = tuple(Item(path, path, files.kind) for path in files.paths)
    made: dict[str, Any] = {"media": media}
    for kind in kinds_of(target):
        given = GivenFiles({name: file for name, file in options.files.items() if name in kind.files})
        needs = Needs(made, given, lambda: items, open_media=partial(open_files, files.folder))
        made[kind.name] = kind.make(apply(kind.config(), kind.name, options.settings), needs)
    del made["media"]
    return [*made.values()]


def _decides(stage: Stage[Any, Any]) -> list[Any]:
    return [stage.version, without_lists(stage.config, to_plain(stage.config))]


def _is_up_to_date(out: Path, made: Sequence[Stage[Any, Any]], root: Storage) -> bool:
    if not _output(out).complete or _read(out, MADE).get("identity") != made[-1].identity:
        return False
    outputs = zip(made, _outputs(out, made, root), strict=True)
    return all(output.complete and not _passing(stage, output) for stage, output in outputs)


def _is_whole(out: Path) -> bool:
    store, storage = _output(out), LocalStorage(str(out))
    return store.complete and all(storage.size(name) == size for name, size in store.files.items())


def _damaged(out: Path) -> list[Unit]:
    """Units of a finished store that have other bytes than were committed; all of them if a file is gone or cut."""
    if not (store := _output(out)).complete:
        return []
    units = [*store.units()]
    if not _is_whole(out):
        return units
    return [unit for unit in units if any(sha256_of(out / name) != sha256 for name, (_, sha256) in unit.files.items())]


def _repaired(damaged: Sequence[Unit]) -> int | None:
    """The number of rows that were made again because of damage; None if there was none."""
    rows = sum(unit.counts.get("rows", 0) + unit.counts.get("regions", 0) for unit in damaged)
    return rows if damaged else None


def _output(out: Path) -> Output:
    return Output(LocalStorage(str(out.parent)), out.name)


def _outputs(out: Path, made: Sequence[Stage[Any, Any]], root: Storage) -> list[Output]:
    return [*(Output(root, stage.folder) for stage in made[:-1]), _output(out)]


def _passing(stage: Stage[Any, Any], output: Output) -> set[str]:
    """Units with failures that another try may be spared."""
    return {unit.name for unit in output.units() if any(kind in stage.passing for _, kind, _ in unit.failures)}


def _lend(out: Path) -> None:
    """Puts the store under its root again, where the stage looks for earlier rows."""
    made = _read(out, MADE)
    if not _is_whole(out) or not {"stage", "identity"} <= made.keys():
        return
    store, files = LocalStorage(str(out)), _output(out).files
    folder = f"{RUNS}/{made['stage']}/{made['identity']}"
    if store.size(f"{folder}/{MADE}") is None:  # else a run was killed after it
        for name in (*files, UNITS, COMPLETE):
            store.link(name, f"{folder}/{name}")
        store.link(f"{RUNS}/{MADE}", f"{folder}/{MADE}")


def _has_units(out: Path) -> bool:
    """Whether anything is made already of the sealed files."""
    root = LocalStorage(str(out / RUNS))
    made = [output.folder for output in directories(root) if not output.folder.startswith("media/")]
    return any(True for folder in made for _ in Commits(root, folder).untainted())


def _forget_passing(made: Sequence[Stage[Any, Any]], root: Storage) -> None:
    """Has units made again, and units of the next stage compared with them."""
    is_stale = False
    for stage in made:
        output = Output(root, stage.folder)
        if output.complete and ((names := _passing(stage, output)) or is_stale):
            Commits(root, stage.folder).forget(names, [*output.units()])
        is_stale = is_stale or not output.complete


def _publish(output: Output, out: Path) -> None:
    """Gives an output the place of the store; until complete.json is there readers refuse it."""
    store = LocalStorage(str(out))
    store.delete(COMPLETE, UNITS)
    for name in {file.partition("/")[0] for file in output.files}:
        if (out / name).is_dir():
            store.delete_folder(name)
        else:
            store.delete(name)
    output.storage.write(MADE, output.storage.read(f"{output.folder}/{MADE}"))
    for name in (*output.files, UNITS, COMPLETE):
        store.link(f"{RUNS}/{output.folder}/{name}", name)


def _sweep(made: Sequence[Stage[Any, Any]], root: Storage) -> None:
    """Deletes all outputs but the frames and the sealed set that they were made of."""
    needed = {made[0].inputs[0].folder, *(stage.folder for stage in made[:-1])}
    for output in directories(root):
        if output.folder not in needed:
            root.delete_folder(output.folder)
    root.delete_folder("_runs/temporary")  # of killed work


def _describe(outputs: Sequence[Output], files: FolderFiles) -> dict[str, Any]:
    store = FeatureStore(outputs[-1])
    units = [unit for output in reversed(outputs) for unit in output.units()]  # of a clip, why it has no frames
    failures = {row: (kind, reason) for unit in units for row, kind, reason in unit.failures}
    cut = cut_clips(outputs[0]) if files.kind == "clip" else {}
    about = {name: store.provenance.get(name) for name in ("network", "weights", "weights_sha256")}
    return about | {
        "store": store.output.where,
        "folder": files.folder,
        "kind": files.kind,
        "items": len(store),
        "row_shape": list(store.spec.row_shape),
        "ragged": store.spec.ragged,
        "dtype": store.spec.dtype,
        "absent": {id: f"{kind}: {reason}" for id, (kind, reason) in failures.items() if id in store.absent},
        "truncated": {id: reason for id, (kind, reason) in failures.items() if kind == TRUNCATED} | cut,
        "boxes_without_area": store.output.totals["counts"].get(WITHOUT_AREA, 0),
        "left_out": dict(files.left_out),
        "followed": dict(files.followed),
    }
