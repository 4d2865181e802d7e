"""What may import what, and that importing does nothing: read from the source, and tried in fresh interpreters."""

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = {
    path.relative_to(ROOT).as_posix(): ast.parse(path.read_text())
    for package in ("xmodal", "pipelines")
    for path in sorted((ROOT / package).rglob("*.py"))
}
LIBRARY = (  # the rooms and modules of xmodal: each imports only from those before it, and from itself
    *("errors", "progress", "number_rules", "python_files", "root", "recipes", "records", "raw", "corpora", "userdata"),
    *(
        "media",
        "text",
        "features",
        "detection",
        "detectors",
        "ranking",
        "metrics",
        "batches",
        "losses",
        "models",
        "training",
        "evaluation",
        "checks",
    ),
)
PIPELINES = (
    "engine",
    "fetching",
    "stage_forms",
    "stages",
    "upkeep",
    "publishing",
    "papers",
    "demo",
    "commands",
    "cli",
    "__main__",
)
ORDER = {"xmodal": LIBRARY, "pipelines": PIPELINES}
OF_ONE_KIND = (
    "xmodal/corpora",
    "xmodal/models",
    "xmodal/detectors",
    "pipelines/stages",
    "pipelines/demo",
)
TORCH_ROOMS = ("xmodal/detectors", "xmodal/losses", "xmodal/models", "xmodal/training", "xmodal/evaluation")
TORCH = {
    *(f"xmodal/batches/{name}.py" for name in ("batch", "buffers", "distributed", "loader", "phrase_loader", "reader")),
    "xmodal/checks/model_contract.py",
    "xmodal/raw/tensor_files.py",
    "xmodal/text/position_codes.py",
    *(f"xmodal/features/{name}.py" for name in ("image_models", "model_facts", "networks", "weight_files")),
    *(f"xmodal/features/{name}_models.py" for name in ("timm", "torchvision", "transformers")),
    "examples/toy_pcme.py",
}
DOORS = {
    "ray": {"pipelines/engine/ray_runner.py"},
    "fsspec": {"xmodal/root/storage.py"},
    "av": {"xmodal/media/libav.py", "pipelines/demo/video.py"},  # one decodes, the other encodes what is generated
}
SINGLE_DOOR = ("zarr", "tensorstore", "decord", "cv2", "detectron2", "timm", "transformers", "s3fs", "h5py", "gensim")
VAGUE = {"utils", "util", "common", "helpers", "helper", "base", "core", "manager", "managers", "misc", "shared"}


def imported(tree: ast.AST) -> Iterator[str]:
    """Every module that is named in an import anywhere in the file, also inside functions, but not for types alone."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield from imported(node)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def importers(package: str) -> set[str]:
    return {path for path, tree in MODULES.items() if any(name.partition(".")[0] == package for name in imported(tree))}


def run_python(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-B", "-c", code], cwd=cwd, capture_output=True, text=True, check=False)


def test_the_library_never_imports_the_pipelines() -> None:
    assert [path for path in importers("pipelines") if path.startswith("xmodal/")] == []


def test_nothing_imports_the_tests() -> None:
    assert importers("tests") == set()


@pytest.mark.parametrize("package", DOORS)
def test_a_heavy_library_comes_in_through_one_door(package: str) -> None:
    assert importers(package) <= DOORS[package]


@pytest.mark.parametrize("package", SINGLE_DOOR)
def test_a_codec_or_store_has_one_door_at_most(package: str) -> None:
    assert len(importers(package)) <= 1


def test_torch_stays_with_what_computes() -> None:
    found = importers("torch") | importers("torchvision")
    assert not {"xmodal/models/__init__.py", "xmodal/detectors/__init__.py"} & found
    assert {path for path in found if not path.startswith(TORCH_ROOMS)} <= TORCH


@pytest.mark.parametrize("folder", ["corpora", "models"])
def test_no_corpus_and_no_model_imports_another(folder: str) -> None:
    """A corpus may share another's sources, by name; nothing else."""
    package = f"xmodal.{folder}"
    members = {path for path in MODULES if path.startswith(f"xmodal/{folder}/") and not path.endswith("__init__.py")}
    others = {f"{package}.{Path(path).stem}" for path in members}
    for path in members:
        taken = [name for name in imported(MODULES[path]) if ".".join(name.split(".")[:3]) in others]
        assert all(folder == "corpora" and name.rpartition(".")[2].isupper() for name in taken), f"{path}: {taken}"


def test_parsing_planning_and_looking_need_neither_torch_nor_ray(tmp_path: Path) -> None:
    light = [
        name_of(path) for path in MODULES if path not in TORCH and "/".join(path.split("/")[:2]) not in TORCH_ROOMS
    ]
    light = [name for name in light if name != "pipelines.engine.ray_runner"] + ["xmodal.training.run_folder"]
    code = f"import importlib, sys; [importlib.import_module(name) for name in {light}]"
    code += "; print(sorted({'torch', 'ray', 'torchvision'} & set(sys.modules)))"
    found = run_python(code, tmp_path)
    assert (found.stdout.strip(), found.stderr) == ("[]", "")


def name_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def rooms_of(path: str) -> tuple[str, str]:
    """The package of a module, and its room there."""
    package, room = path.removesuffix(".py").split("/")[:2]
    return package, room


@pytest.mark.parametrize("package", ORDER)
def test_every_import_goes_to_a_room_above(package: str) -> None:
    """What many use stands before what uses it."""
    order, wrong = ORDER[package], []
    for path, tree in MODULES.items():
        inside, room = rooms_of(path)
        if inside != package or room == "__init__":
            continue
        assert room in order, f"{path} is in no room of the list"
        for name in imported(tree):
            taken = name.split(".")
            if taken[0] == package and taken[1] in order and order.index(taken[1]) > order.index(room):
                wrong.append(f"{path} imports {name}")
    assert wrong == []


def test_no_room_has_more_modules_than_one_can_overlook() -> None:
    count = Counter(path.rpartition("/")[0] for path in MODULES if not path.endswith("__init__.py"))
    limits = dict.fromkeys(OF_ONE_KIND, 20)
    assert {room: size for room, size in count.items() if size > limits.get(room, 14)} == {}


def test_no_two_modules_have_one_name() -> None:
    """A corpus and its generated publisher excepted."""
    names = Counter(Path(path).stem for path in MODULES if not path.startswith("pipelines/demo/"))
    assert {name for name, count in names.items() if count > 1} == {"__init__"}


def test_no_two_public_classes_have_one_name() -> None:
    names = Counter(
        node.name
        for path, tree in MODULES.items()
        if not path.startswith("pipelines/demo/")
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, count in names.items() if count > 1} == set()


def test_every_corpus_loads_and_is_listed_without_torch_and_ray(tmp_path: Path) -> None:
    code = """
import sys
from xmodal import corpora
for name in corpora.names():
    assert corpora.load(name).name == name
print(sorted({'torch', 'ray'} & set(sys.modules)))
"""
    found = run_python(code, tmp_path)
    assert (found.stdout.strip(), found.stderr) == ("[]", "")


WATCHED_IMPORT = """
import json, os, sys, threading, warnings
{third_party}
before, threads, events = dict(os.environ), threading.active_count(), []
folder, filters = os.getcwd(), list(warnings.filters)

def watch(event, arguments):
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if writes or event in ("os.mkdir", "os.rename", "os.remove", "os.link", "socket.connect", "subprocess.Popen"):
        events.append([event, str(arguments[0])])

sys.addaudithook(watch)
for module in {modules}:
    __import__(module)
events += [["environment", name] for name in dict(os.environ).items() ^ before.items()]
events += [["threads", threading.active_count()]] if threading.active_count() != threads else []
events += [["folder", os.getcwd()]] if os.getcwd() != folder else []
print(json.dumps(events))
"""


def test_importing_does_nothing(tmp_path: Path) -> None:
    """No file, no folder, no connection, no thread, no environment; what other packages do on import is theirs."""
    names = [name_of(path) for path in MODULES]
    own = [name for name in names if not name.endswith("__main__")]
    others = sorted({name.partition(".")[0] for tree in MODULES.values() for name in imported(tree)})
    third_party = "\n".join(f"import {name}" for name in others if name not in ("xmodal", "pipelines", "__future__"))
    code = WATCHED_IMPORT.format(third_party=third_party, modules=own)
    found = run_python(code, tmp_path)
    assert found.stderr == ""
    assert json.loads(found.stdout) == []
    assert list(tmp_path.iterdir()) == []


def test_names_say_what_is_inside() -> None:
    folders = {part for path in MODULES for part in Path(path).with_suffix("").parts}
    assert folders & VAGUE == set()


def test_every_module_says_what_it_is_for() -> None:
    assert [path for path, tree in MODULES.items() if not ast.get_docstring(tree)] == []


def test_docstrings_begin_with_their_subject() -> None:
    """The first sentence has a subject, a verb and an object, in at most 20 words."""
    wrong = []
    for path, tree in MODULES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                first = re.split(r"(?<=[.:;])\s|\n\n", text)[0]
                if re.match(r"(Of|What|Whose|Those|Which)\b", text) or len(first.split()) > 20:
                    wrong.append(f"{path}:{getattr(node, 'lineno', 1)} {first}")
    assert wrong == []


def test_nothing_swallows_every_exception() -> None:
    """`except Exception` only where it is raised again."""
    for path, tree in MODULES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ExceptHandler) and (
                node.type is None or ast.unparse(node.type).endswith("ception")
            ):
                assert any(isinstance(inner, ast.Raise) for inner in ast.walk(node)), f"{path}:{node.lineno}"


def test_no_environment_variable_is_read_but_those_that_ray_sets() -> None:
    reading = [path for path, tree in MODULES.items() if {"os.environ", "os.getenv"} & names_of(tree)]
    assert reading == ["pipelines/engine/ray_runner.py"]
    assert re.findall(r"environ\W+get\W+(\w+)", (ROOT / reading[0]).read_text()) == ["RAY_ADDRESS"]


def names_of(tree: ast.Module) -> set[str]:
    return {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
