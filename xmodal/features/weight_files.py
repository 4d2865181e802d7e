"""Weights of networks: drawn by a seed, of a user's file, or published; loading them runs nothing that is in them."""

import hashlib
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xmodal.errors import UserError, extra_needed, few, first_sentences
from xmodal.raw.tensor_files import read_tensor_file
from xmodal.root.files import sha256_of

if TYPE_CHECKING:
    from torch import Tensor, nn

RANDOM, OF_FILE = "random:", "sha256:"  # begin names of weights
UNTRAINED = (
    "give their file by --weights FILE (of a detector: --file detector=PATH), "
    "or do without training: --set weights=random:0"
)
WRONG = (  # errors of filling a network with what is no state_dict, or another network's
    *(RuntimeError, AttributeError, TypeError, OSError, ValueError, LookupError),
    *(AssertionError, OverflowError, MemoryError, RecursionError),
)
INDEX = ".safetensors.index.json"  # ends the name of what tells in which of several files each tensor is
HUB_FILES = ("model.safetensors", f"model{INDEX}", "pytorch_model.bin")


def filled_network(
    name: str,
    weights: str,
    file: Path | None,
    build: "Callable[[], nn.Module]",
    fill: "Callable[[nn.Module, Mapping[str, Tensor]], None]",
    published: Callable[[], Path],
    read: "Callable[[Path], Mapping[str, Tensor]] | None" = None,
) -> "tuple[nn.Module, str]":
    """A network, and the sha256 of its weights' file or, if they are random, of the numbers.

    `read` reads files of other kinds than a state_dict. `fill` raises ValueError for weights of another network.
    torch's own random state is left alone.
    """
    import torch

    with torch.random.fork_rng(devices=[]):
        seed = int(weights.removeprefix(RANDOM)) if weights.startswith(RANDOM) else 0
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed GPUs, too, which are not forked
        network = build().eval()
    if weights.startswith(RANDOM):
        return network, _sha256_of_numbers(network)
    if weights.startswith(OF_FILE) and (file is None or weights != f"{OF_FILE}{weights_sha256(file)}"):
        raise UserError(f"weights {weights} are those of a file, which {file} is not: give that file")
    if file is None or not weights.startswith(OF_FILE):
        file = published()
    state: Mapping[str, Any] = {}
    try:
        state = (read or read_state)(file)
        fill(network, state)
    except WRONG as error:
        why = _where_it_is(file, state, network, fill) or _told(error)
        raise UserError(f"weights {file} are no state_dict of a {name}: {why}") from error
    return network, weights_sha256(file)


def _told(error: BaseException) -> str:
    text = " ".join(str(error).split())[:300]
    return text if isinstance(error, ValueError | RuntimeError) else f"it does not fit ({type(error).__name__} {text})"


def _where_it_is(
    file: Path,
    found: Mapping[str, Any],
    network: "nn.Module",
    fill: "Callable[[nn.Module, Mapping[str, Tensor]], None]",
) -> str:
    """Says how to take a state_dict out of a part of a file, or from behind a prefix; '' if none would do."""
    first, *others = (name for name in network.state_dict() if not name.endswith("num_batches_tracked"))
    parts = {name: part for name, part in found.items() if isinstance(part, Mapping) and all(map(_is_name, part))}
    for part, state in {"": found, **parts}.items():
        for prefix in [""] + [name.removesuffix(first) for name in state if name.endswith(first) and name != first]:
            own = {name.removeprefix(prefix): state[name] for name in state if name.startswith(prefix)}
            if (part or prefix) and (not prefix or own.keys() >= {*others}) and _fits(fill, network, own):
                return _how_to_convert(file, part, prefix)
    return ""


def _is_name(key: object) -> bool:
    return isinstance(key, str)


def _fits(
    fill: "Callable[[nn.Module, Mapping[str, Tensor]], None]", network: "nn.Module", state: Mapping[str, Any]
) -> bool:
    try:
        fill(network, state)
    except (*WRONG, UserError):
        return False
    return True


def _how_to_convert(file: Path, part: str, prefix: str) -> str:
    where, state, taken = "", f"read_state({str(file)!r})", "state"
    if part:
        where, state = f" in its part {part!a}", f"{state}[{part!r}]"
    if prefix:
        where += f" under names that begin with {prefix!a}"
        taken = f"{{k[{len(prefix)}:]: v for k, v in state.items() if k.startswith({prefix!r})}}"
    code = f"import torch; from xmodal.features.weight_files import read_state; state = {state}; "
    code += f"torch.save({taken}, {str(file.with_name(f'{file.stem}-plain.pth'))!r})"
    quoted = shlex.quote(code) if re.search(r'["$`\\!]', code) else f'"{code}"'
    return f"it has one{where}: make a file of that: python -c {quoted}"


def check_weights_name(weights: str, network: str) -> None:
    """Refuses what is no name of a detector's weights."""
    if not re.fullmatch(r"published|random:\d{1,18}|sha256:[0-9a-f]{64}", weights):
        there = "published, random:<seed>, and the file that --file detector=FILE names"
        raise UserError(f"no weights {weights!r} for {network}; there are: {there}")


def weights_sha256(file: Path) -> str:
    """The sha256 of a file; of an index, of the text that names its files' sha256s, a line each."""
    try:
        if not file.name.endswith(INDEX):
            return sha256_of(file)
        lines = [f"{sha256_of(part)}  {part.name}\n" for part in parts_of(file)]
        return hashlib.sha256("".join(lines).encode()).hexdigest()
    except OSError as error:
        cure = ": name the file in it that has them" if isinstance(error, IsADirectoryError) else ""
        raise UserError(f"weights {error.filename or file} cannot be read: {error.strerror}{cure}") from error


def parts_of(index: Path) -> list[Path]:
    """The files beside an index that together are the weights; names of others are refused."""
    return [index.with_name(name) for name in sorted({*_placed(index).values()})]


def _placed(index: Path) -> Mapping[str, str]:
    """The name of the file of each tensor."""
    placed: Mapping[str, str]
    try:
        placed = json.loads(index.read_bytes())["weight_map"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise UserError(
            f"weights {index} are no index of files ({type(error).__name__}): get the file again"
        ) from error
    names = placed.values() if isinstance(placed, dict) else ()
    if not names or not all(isinstance(name, str) and re.fullmatch(r"[\w.-]+\.safetensors", name) for name in names):
        raise UserError(f"weights {index} are no index of files: weight_map must name .safetensors beside it")
    return placed


def load_exactly(network: "nn.Module", state: "Mapping[str, Tensor]", head: tuple[str, ...]) -> None:
    """Loads all but what begins with `head`; raises ValueError if an entry is lacking or unknown."""
    own = {key: values for key, values in state.items() if not key.startswith(head)}
    wanted = {key: values.shape for key, values in network.state_dict().items()}
    shapes = {key: getattr(values, "shape", None) for key, values in own.items()}
    others = [
        f"{key} ({_sides(shape)}, not {_sides(wanted[key])})"
        for key, shape in shapes.items()
        if shape != wanted.get(key, shape)
    ]
    refuse({"has other sides of": others})
    found = network.load_state_dict(own, strict=False)
    refuse({"lacks": found.missing_keys, "has unknown": found.unexpected_keys})


def _sides(shape: Sequence[int] | None) -> str:
    return "no tensor" if shape is None else " x ".join(map(str, shape)) or "one number"


def refuse(wrong: Mapping[str, list[str]]) -> None:
    if faults := [f"{w} {few(names, 2)}{' entries' if len(names) > 2 else ''}" for w, names in wrong.items() if names]:
        raise ValueError(f"it {' and '.join(faults)}")


def download(url: str, told: str) -> Path:
    """Fetches weights once, into torch's own folder; `told` names them."""
    import torch

    file = Path(torch.hub.get_dir(), "checkpoints", url.rpartition("/")[2])
    checksum = file.stem.rpartition("-")[2]  # its beginning
    try:
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(url, str(file), checksum, progress=False)
    except (OSError, RuntimeError) as error:
        raise UserError(f"{told} cannot be fetched from {url} ({error}): {UNTRAINED}") from error
    if not weights_sha256(file).startswith(checksum):
        raise UserError(f"weights {file} are damaged: delete the file, it is fetched again")
    return file


def hub_weights(repository: str, revision: str | None, told: str) -> Path:
    for name in HUB_FILES:
        if (file := hub_folder(repository, revision, (name,), told, UNTRAINED) / name).is_file():
            for part in parts_of(file) if name.endswith(INDEX) else ():
                hub_folder(repository, file.parent.name, (part.name,), told, UNTRAINED)  # of the same commit
            return file
    files = f"{' or '.join(HUB_FILES)} of huggingface.co/{repository}"
    raise UserError(f"{told}: {files} is neither here nor could be fetched: {UNTRAINED}")


def hub_folder(repository: str, revision: str | None, names: tuple[str, ...], told: str, cure: str) -> Path:
    """The folder of one commit of a repository with these files, as far as it has them; the first is looked for here.

    What was fetched once is not asked for again, so that a name means the same as long as it is kept.
    """
    with extra_needed("transformers", f"{told} comes from huggingface.co, which needs huggingface_hub"):
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    def folder(is_here: bool) -> Path:
        wanted = [*names]
        return Path(snapshot_download(repository, revision=revision, allow_patterns=wanted, local_files_only=is_here))

    try:
        found = folder(is_here=True)
    except LocalEntryNotFoundError:
        found = None
    if found and (found / names[0]).is_file():
        return found
    try:
        return folder(is_here=False)
    except (HfHubHTTPError, OSError, ValueError) as error:
        why = first_sentences(error)
        raise UserError(f"{told} cannot be fetched from huggingface.co/{repository} ({why}): {cure}") from error


def read_state(path: str | Path) -> "Mapping[str, Tensor]":
    """The tensors of a file, or of those that an index names, by their names; raises ValueError if it has none."""
    file = Path(path)
    if file.name.endswith(INDEX):
        return _read_parts(file)
    state = read_tensor_file(file)
    if not isinstance(state, Mapping) or not state or not all(map(_is_name, state)):
        raise ValueError(f"it has {describe(state)} in it, not tensors by name: save a state_dict")
    return state


def describe(found: object) -> str:
    """Says in some words what a file had in it."""
    if isinstance(found, Mapping):
        return few([str(name)[:100] for name in found], 3) or "nothing"
    return f"a {type(found).__name__}"


def _read_parts(index: Path) -> "Mapping[str, Tensor]":
    placed = _placed(index)
    state: dict[str, Tensor] = {}
    for part in parts_of(index):
        found = read_state(part)
        if strange := [name for name in found if placed.get(name) != part.name]:
            raise ValueError(f"its index does not place {few(strange, 2)} in {part.name}")
        state |= found
    refuse({"lacks": sorted(placed.keys() - state.keys())})
    return state


def _sha256_of_numbers(network: "nn.Module") -> str:
    numbers = hashlib.sha256()
    for name, values in sorted(network.state_dict().items()):
        numbers.update(name.encode() + values.numpy().tobytes())
    return numbers.hexdigest()


@contextmanager
def reproducible() -> Iterator[None]:
    """One thread computes, as more would change the last bits."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def enough_memory(batch_size: int, stage: str = "") -> Iterator[None]:
    """Says what to set where a GPU has too little; `stage` is what names of settings begin with."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        cure = f"batch_size={batch_size // 2}" if batch_size > 1 else "device=cpu"
        raise UserError(
            f"the GPU has too little memory for {batch_size} pictures at once: --set {stage}{cure}"
        ) from error


def check_device(device: str) -> None:
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("device cuda: torch finds no GPU here; --set device=cpu does without")
