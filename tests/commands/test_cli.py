"""The command line as a person meets it: what is said where, the exit code, and what the root is like afterwards."""

import errno
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.cli import main
from tests.conftest import tree_digest
from tests.fetching.test_fetch import scripted
from tests.fetching.test_ledger import Publisher, publishing

REPOSITORY = Path(__file__).parents[2]
CALL = "import sys; from pipelines.cli import main; sys.exit(main())"
PROGRESS = re.compile(r"[\w ./-]+: [\d,]+/[\d,]+ (units|files) \(\d+ %\).*")
SERIAL = {"build", "features", "plan", "retry"}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.fetching.fetcher.PAUSES_SECONDS", (0.0, 0.0, 0.0))


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Publisher]:
    with publishing(tmp_path) as publisher:
        yield publisher


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def complaint(self) -> str:
        """The one line of a command that could not do its work; there is nothing else but progress."""
        *before, last = self.err.splitlines()
        assert self.code not in (0, 2), self
        assert self.out == ""
        assert last.startswith("xmodal: ")
        assert [line for line in before if not PROGRESS.fullmatch(line)] == []
        return last


class Xmodal:
    """Runs commands in this process, without Ray."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, command: str, *arguments: object) -> Said:
        self._capsys.readouterr()
        serial = ["--serial"] if command in SERIAL else []
        code = main([command, *map(str, arguments), *serial])
        said = self._capsys.readouterr()
        return Said(code, said.out, said.err)

    def done(self, command: str, *arguments: object) -> Any:
        """The JSON of a command that must succeed."""
        said = self(command, *arguments, "--json")
        assert said.code == 0, said.err
        return said.json


@pytest.fixture
def xmodal(capsys: pytest.CaptureFixture[str]) -> Xmodal:
    return Xmodal(capsys)


def in_subprocess(*arguments: object, before: str = "", prefix: tuple[str, ...] = ()) -> Said:
    command = [*prefix, sys.executable, "-B", "-c", before + CALL, *map(str, arguments)]
    found = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=False)
    return Said(found.returncode, found.stdout, found.stderr)


def undisturbed(xmodal: Xmodal, publisher: Publisher, tmp_path: Path) -> str:
    """What the tree of a build without any trouble is like."""
    xmodal.done("build", publisher.file, "--root", tmp_path / "undisturbed")
    return tree_digest(str(tmp_path / "undisturbed"))


def only(folder: Path) -> Path:
    (found,) = folder.iterdir()
    return found


# ------------------------------------------------------------------------------------------------ what a command needs

REPORT = """
import sys
from pipelines.cli import main
try:
    code = main()
finally:
    print("imported:", *sorted({"torch", "ray", "pyarrow", "s3fs", "boto3"} & set(sys.modules)), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        (["--help"], set()),
        (["build", "--help"], set()),
        (["corpora"], {"pyarrow"}),
        (["plan", "MINE", "--root", "ROOT"], {"pyarrow"}),
        (["status", "--root", "ROOT"], {"pyarrow"}),
        (["verify", "--root", "ROOT"], {"pyarrow"}),
        (["doctor"], set()),
        (["build", "MINE", "--root", "ROOT"], {"pyarrow"}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_command_imports_no_more_than_it_needs(
    arguments: list[str], allowed: set[str], xmodal: Xmodal, publisher: Publisher, root: Path
) -> None:
    xmodal.done("build", publisher.file, "--root", root)
    names = {"MINE": str(publisher.file), "ROOT": str(root)}
    command = [sys.executable, "-B", "-c", REPORT, *(names.get(argument, argument) for argument in arguments)]
    found = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=False)
    assert found.returncode == 0, found.stderr
    imported = found.stderr.splitlines()[-1].removeprefix("imported:").split()
    assert set(imported) <= allowed


def test_help_names_every_command_and_shows_examples() -> None:
    said = in_subprocess("--help")
    assert (said.code, said.err) == (0, "")
    for command in ("corpora", "plan", "build", "retry", "seal", "status", "verify", "doctor"):
        assert re.search(rf"^ +{command} ", said.out, re.MULTILINE), command
    assert "xmodal build coco" in said.out
    assert in_subprocess().out == said.out


# ---------------------------------------------------------------------------------------------------- the usual course


def test_build_status_damage_verify_forget_build(xmodal: Xmodal, publisher: Publisher, root: Path) -> None:
    said = xmodal("build", publisher.file, "--root", root)
    assert said.code == 0
    before = tree_digest(str(root))
    for folder in (only(root / name) for name in ("sources", "records", "media")):
        assert str(folder) in said.out, "it ends with where its output is"
    assert all(output["complete"] for output in xmodal.done("status", "--root", root)["outputs"])
    assert xmodal.done("verify", "--root", root)["damage"] == []

    table = only(root / "records") / "captions.parquet"
    table.write_bytes(table.read_bytes()[::-1])
    said = xmodal("verify", "--root", root)
    assert said.code == 1
    assert f"records/{table.parent.name}/captions.parquet: its bytes have changed" in said.out
    assert "--forget" in said.out

    assert xmodal("verify", "--root", root, "--forget").code == 1
    publisher.asked()
    rows = xmodal.done("build", publisher.file, "--root", root)["outputs"]
    assert [row["stage"] for row in rows if row["built"]] == ["records"]
    assert publisher.asked() == []
    assert tree_digest(str(root)) == before
    assert xmodal("verify", "--root", root).code == 0


@pytest.mark.parametrize("how", ["changed", "cut", "gone"])
@pytest.mark.parametrize("name", ["captions.tsv", "pictures/p004.jpg"])
def test_a_damaged_blob_is_named_forgotten_and_fetched_again_by_the_next_build(
    name: str, how: str, xmodal: Xmodal, publisher: Publisher, root: Path
) -> None:
    xmodal.done("build", publisher.file, "--root", root)
    before = tree_digest(str(root))
    content = (publisher.folder / name).read_bytes()
    blob = next(path for path in (root / "blobs").rglob("*") if path.is_file() and path.read_bytes() == content)
    if how == "gone":
        blob.unlink()
    else:
        blob.write_bytes(content[::-1] if how == "changed" else content[:10])
    said = xmodal("verify", "--root", root)
    assert said.code == 1
    assert name in said.out
    xmodal("verify", "--root", root, "--forget")
    publisher.asked()
    xmodal.done("build", publisher.file, "--root", root)
    assert publisher.asked() == [name]
    assert tree_digest(str(root)) == before


def test_a_second_build_does_nothing_and_says_so(xmodal: Xmodal, publisher: Publisher, root: Path) -> None:
    first = xmodal.done("build", publisher.file, "--root", root)["outputs"]
    publisher.asked()
    second = xmodal.done("build", publisher.file, "--root", root)["outputs"]
    assert [row["built"] for row in first] == [True] * 3
    assert [row["built"] for row in second] == [False] * 3
    assert [row["identity"] for row in first] == [row["identity"] for row in second]
    assert publisher.asked() == []
    assert "up to date" in xmodal("build", publisher.file, "--root", root).out


def test_a_setting_makes_another_directory_and_redoes_just_what_depends_on_it(
    xmodal: Xmodal, publisher: Publisher, root: Path
) -> None:
    xmodal.done("build", publisher.file, "--root", root)
    publisher.asked()
    rows = xmodal.done("build", publisher.file, "--root", root, "--set", "row_group=3")["outputs"]
    assert [row["stage"] for row in rows if row["built"]] == ["records"]
    assert len(list((root / "records").iterdir())) == 2
    assert publisher.asked() == []
    said = xmodal("status", "--root", root).out
    for how in ("row_group=3, current", "row_group=65536, not in use"):
        assert re.search(rf"^records/\w+ \({how}\) of pictures: complete, ", said, re.MULTILINE)
    assert re.search(r"^sources/\w+ of pictures: complete, ", said, re.MULTILINE), "there is one alone"


def test_outputs_of_the_same_settings_are_told_apart_by_what_they_were_made_of(
    xmodal: Xmodal, publisher: Publisher, root: Path
) -> None:
    publisher.withdraw("p003.jpg")
    xmodal.done("build", publisher.file, f"{publisher.file}/fingerprints", "--root", root, "--most-absent", "1")
    publisher.restore("p003.jpg")
    xmodal.done("retry", publisher.file, "--root", root)
    xmodal.done("seal", publisher.file, "--root", root)
    xmodal.done("build", publisher.file, f"{publisher.file}/fingerprints", "--root", root, "--most-absent", "1")
    sets = {path.name for path in (root / "media").iterdir()}
    said = xmodal("status", "--root", root).out
    told = re.findall(
        r"^fingerprints/\w+ \((?:current|not in use), built 20\d\d-\d\d-\d\d, .*of media/(\w+)\) of ",
        said,
        re.MULTILINE,
    )
    assert set(told) == sets
    assert len(sets) == 2


def test_one_stage_is_built_with_what_it_needs_and_no_more(xmodal: Xmodal, publisher: Publisher, root: Path) -> None:
    rows = xmodal.done("build", f"{publisher.file}/records", "--root", root)["outputs"]
    assert [(row["corpus"], row["stage"]) for row in rows] == [("pictures", "records")]
    assert rows[0]["counts"]["captions"] == 16
    assert [path for path in publisher.asked() if path.startswith("pictures/")] == []
    assert not (root / "media").exists()


def test_a_raw_folder_saves_the_requests(xmodal: Xmodal, publisher: Publisher, root: Path) -> None:
    plan = xmodal.done("plan", publisher.file, "--root", root, "--raw", publisher.folder)["stages"]
    assert (plan[0]["at_hand"], plan[0]["requests"]) == (3, 0)
    xmodal.done("build", publisher.file, "--root", root, "--raw", publisher.folder)
    assert publisher.asked() == []
    (_, media) = xmodal.done("status", "--root", root)["ledgers"]
    assert media["files"] == {"local": 8}


def test_failures_are_shown_by_class_with_an_example_and_the_hint_of_retry_works(
    xmodal: Xmodal, publisher: Publisher, root: Path
) -> None:
    publisher.withdraw("p001.jpg", "p005.jpg")
    built = xmodal("build", publisher.file, "--root", root)
    assert re.search(r"fetch media/pictures: 8/8 files \(100 %\).*: 6 arrived, 2 failed\n", built.err)
    assert re.search(r"fetch sources/pictures: 3/3 files \(100 %\)[^:]*\n", built.err)
    said = xmodal("status", "--root", root).out
    assert re.search(r"http_404: 2, such as pictures/p001\.jpg \(http://\S+ answers 404", said)
    publisher.restore("p001.jpg")
    said = xmodal("retry", publisher.file, "--root", root, "--class", "http_404").out
    assert "1 of 2 files recovered\nstill absent: 1 http_404, such as pictures/p005.jpg: http://" in said
    (hint,) = re.findall(r"`xmodal (seal [^`]*)`", said)
    assert xmodal(*hint.split()).code == 0
    rows = xmodal.done("build", publisher.file, "--root", root)["outputs"]
    assert rows[-1]["counts"] == {"absent": 1, "present": 7}


def test_a_plan_writes_nothing_and_says_what_a_build_will_ask_for(
    xmodal: Xmodal, publisher: Publisher, root: Path
) -> None:
    plan = xmodal.done("plan", publisher.file, "--root", root)["stages"]
    assert not root.exists()
    assert publisher.asked() == []
    assert [row["stage"] for row in plan] == ["sources", "records", "media"]
    assert plan[0]["requests"] == 3
    assert plan[1]["waits_for"] == plan[2]["waits_for"] == "sources", "until then nobody knows the pictures"
    last = xmodal("plan", publisher.file, "--root", root).out.splitlines()[-1]
    assert (
        last == "pictures/records, pictures/media: to be reckoned once what each comes after is done; plan again then"
    )
    xmodal.done("build", f"{publisher.file}/sources", "--root", root)
    assert len(publisher.asked()) == 3
    assert xmodal.done("plan", f"{publisher.file}/media", "--root", root)["stages"][0]["requests"] == 8
    xmodal.done("build", publisher.file, "--root", root)
    assert len(publisher.asked()) == 8
    assert sum(row.get("requests", 0) for row in xmodal.done("plan", publisher.file, "--root", root)["stages"]) == 0


def test_verify_shows_how_far_it_is_among_the_files_it_reads(xmodal: Xmodal, publisher: Publisher, root: Path) -> None:
    xmodal.done("build", publisher.file, "--root", root)
    said = xmodal("verify", "--root", root, "--json")
    assert f"verify: {said.json['files']}/{said.json['files']} files (100 %)" in said.err


@pytest.mark.parametrize(
    "command",
    [
        ("corpora",),
        ("plan", "MINE", "--root", "ROOT"),
        ("build", "MINE", "--root", "ROOT"),
        ("retry", "MINE", "--root", "ROOT"),
        ("seal", "MINE", "--root", "ROOT"),
        ("status", "--root", "ROOT"),
        ("verify", "--root", "ROOT"),
        ("doctor", "--root", "ROOT"),
    ],
    ids=lambda command: command[0],
)
def test_json_is_all_there_is_on_stdout_and_people_get_text(
    command: tuple[str, ...], xmodal: Xmodal, publisher: Publisher, root: Path
) -> None:
    publisher.withdraw("p003.jpg")
    xmodal.done("build", publisher.file, "--root", root)
    names = {"MINE": str(publisher.file), "ROOT": str(root)}
    arguments = [names.get(argument, argument) for argument in command]
    said = xmodal(*arguments, "--json")
    assert said.code == 0
    assert isinstance(said.json, dict | list)
    people = xmodal(*arguments)
    assert people.out.strip()
    assert not people.out.lstrip().startswith(("{", "["))


def test_a_pipe_that_is_closed_early_is_no_trouble(xmodal: Xmodal, publisher: Publisher, root: Path) -> None:
    xmodal.done("build", publisher.file, "--root", root)
    command = [sys.executable, "-B", "-c", CALL, "status", "--root", str(root), "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=REPOSITORY, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()


@pytest.fixture
def heeds_ctrl_c() -> Iterator[None]:
    """A shell that runs the tests in the background has them, and what they start, ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_ctrl_c_stops_with_one_line_and_the_same_command_goes_on(root: Path, tmp_path: Path) -> None:
    hold, answer = threading.Event(), b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody"
    with scripted(answer, answer, hold=hold) as url:
        mine = corpus_file(tmp_path, f"(Source('a.txt', '{url}/a.txt'),)")
        command = [sys.executable, "-B", "-c", CALL, "build", str(mine), "--root", str(root), "--serial"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=REPOSITORY, text=True)
        while process.poll() is None and not list(root.glob("_runs/partial/*")):
            threading.Event().wait(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=10)
        hold.set()
        said = Said(process.returncode, out, err)
        assert said.code == 130
        assert said.complaint == "xmodal: stopped; run the same command again to go on"
        assert in_subprocess(*command[4:]).code == 0


def test_an_address_where_nobody_listens_is_said_at_once(root: Path, tmp_path: Path) -> None:
    """Ray alone would wait for minutes."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        mine = corpus_file(tmp_path, "(Source('a.txt', None, how='by hand'),)")
        said = in_subprocess("build", str(mine), "--root", str(root), "--raw", str(tmp_path), "--address", address)
    assert said.code == 1
    assert said.complaint.startswith(f"xmodal: no Ray cluster at {address}: start one")


# ---------------------------------------------------------------------------------------------------- what is mistyped


def corpus_file(folder: Path, sources: str = "()", text: str = "") -> Path:
    file = folder / "corpus.py"
    file.write_text(
        text
        or "from xmodal.corpora import Corpus, Source\n"
        f"CORPUS = Corpus('toy', '', 'CC0', 'toy', {sources}, parse=lambda raw: iter(()))\n"
    )
    return file


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["build", "cocoa", "--root", "ROOT"], r"no corpus 'cocoa'; did you mean coco\?"),
        (["plan", "zebra", "--root", "ROOT"], r"no corpus 'zebra'; there are: .*coco"),
        (["build", "nowhere/mine.py", "--root", "ROOT"], r"no corpus file nowhere/mine\.py"),
        (
            ["build", "MINE/recrods", "--root", "ROOT"],
            r"no stage 'recrods' \(do you mean records\?\); there are: sources, records, media",
        ),
        (["build", "MINE", "--root", "ROOT", "--set", "xyz=3"], r"no setting 'xyz'; there are: records\.row_group"),
        (["build", "MINE", "--root", "ROOT", "--set", "row_group"], r"--set takes name=value, not 'row_group'"),
        (["build", "MINE", "--root", "ROOT", "--set", "row_group=many"], r"row_group=many: not an integer"),
        (["build", "MINE", "--root", "ROOT", "--set", "row_group=0"], r"row_group is at least 1, not 0"),
        (["build", "MINE/media", "--root", "ROOT", "--set", "row_group=many"], r"row_group=many: not an integer"),
        (["plan", "MINE", "--root", "ROOT", "--set", "row_group=many"], r"row_group=many: not an integer"),
        (["build", "MINE", "--root", "ROOT", "--raw", "MINE"], r"--raw .*mine\.py is not a folder"),
        (["build", "MINE", "--root", "ROOT", "--raw", "nowhere"], r"--raw nowhere is not a folder"),
        (["build", "MINE", "--root", "nowhere://x/y"], r"nowhere"),
        (["status", "--root", "nowhere://x/y"], r"nowhere"),
        (["status", "--root", "ROOT"], r"nothing under .*root: is this the root you built\?"),
        (["verify", "--root", "ROOT"], r"nothing under .*root"),
        (["status", "--root", "MINE"], r"mine\.py.*folder"),
        (["build", "MINE", "--root", "MINE"], r"mine\.py.*folder"),
        (["seal", "MINE", "--root", "ROOT"], r"captions\.tsv"),
    ],
    ids=lambda value: " ".join(value[:2] + value[4:]) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_before_anything_is_asked_for_or_written(
    arguments: list[str], said: str, xmodal: Xmodal, publisher: Publisher, root: Path
) -> None:
    places = {"ROOT": str(root), "MINE": str(publisher.file)}
    named = [re.sub("ROOT|MINE", lambda match: places[match[0]], argument) for argument in arguments]
    assert re.search(said, xmodal(*named).complaint)
    assert publisher.asked() == []
    assert not root.exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def parse(raw:\n", r"corpus\.py.*line 1"),
        ("CORPUSES = []\n", "defines no CORPUS"),
        ("CORPUS = 'toy'\n", "defines no CORPUS"),
        ("import a_package_that_nobody_has\n", r"corpus\.py.*a_package_that_nobody_has"),
        ("from xmodal.corpora import Source\nSource('a.txt')\n", r"corpus\.py.*a\.txt: a source without URL"),
        ("from xmodal.corpora import Source\nSource('../a', 'http://x')\n", r"corpus\.py.*stays inside the raw folder"),
    ],
    ids=["syntax", "no corpus", "another thing", "import", "no how", "unsafe path"],
)
def test_a_corpus_file_that_cannot_be_loaded_is_one_line_that_names_it(
    text: str, said: str, xmodal: Xmodal, root: Path, tmp_path: Path
) -> None:
    file = corpus_file(tmp_path, text=text)
    assert re.search(said, xmodal("build", file, "--root", root).complaint)
    assert not root.exists()


def test_a_root_on_a_dead_object_store_is_one_line(publisher: Publisher) -> None:
    pytest.importorskip("s3fs")
    settings = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
    }
    before = f"import os; os.environ.update({settings});"
    said = in_subprocess("build", publisher.file, "--root", "s3://dead/root", "--serial", before=before)
    assert "s3://dead/root" in said.complaint


def test_a_stray_file_under_a_root_is_let_alone(xmodal: Xmodal, publisher: Publisher, root: Path) -> None:
    root.mkdir()
    (root / "notes.txt").write_text("mine")
    xmodal.done("build", publisher.file, "--root", root)
    assert len(xmodal.done("status", "--root", root)["outputs"]) == 3
    assert xmodal.done("verify", "--root", root)["damage"] == []


# ------------------------------------------------------------------------------------------- what publishers get wrong


def test_a_missing_file_stops_the_build_and_the_next_one_goes_on(
    xmodal: Xmodal, publisher: Publisher, root: Path, tmp_path: Path
) -> None:
    expected = undisturbed(xmodal, publisher, tmp_path)
    (publisher.folder / "splits.json").rename(publisher.folder / "away")
    complaint = xmodal("build", publisher.file, "--root", root).complaint
    assert re.search(r"1 of 3 files are missing: splits\.json \(http_404: .*--raw FOLDER", complaint)
    assert not (root / "sources").exists()
    assert "http_404" in xmodal("status", "--root", root).out
    (publisher.folder / "away").rename(publisher.folder / "splits.json")
    publisher.asked()
    xmodal.done("build", publisher.file, "--root", root)
    assert publisher.asked()[0] == "splits.json"
    assert tree_digest(str(root)) == expected


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("p000.jpg\tone caption more\n", r"must give 16 captions, not 17"),
        ("p999.jpg\ta caption of nothing\n", r"a caption names item 'p999', which does not exist"),
    ],
)
def test_what_contradicts_the_corpus_is_one_line_and_is_not_committed(
    line: str, said: str, xmodal: Xmodal, publisher: Publisher, root: Path
) -> None:
    with (publisher.folder / "captions.tsv").open("a") as file:
        file.write(line)
    assert re.search(said, xmodal("build", publisher.file, "--root", root).complaint)
    assert list(root.glob("records/*/complete.json")) == []
    assert list(root.glob("records/*/*.parquet")) == []


def test_a_parse_that_stops_half_way_is_one_line_and_commits_nothing(
    xmodal: Xmodal, publisher: Publisher, root: Path, tmp_path: Path
) -> None:
    """In a process of its own: what writers left open say at its end belongs to what a person sees."""
    expected = undisturbed(xmodal, publisher, tmp_path)
    good = publisher.file.read_text()
    bad = good.replace("seen = Counter[str]()", 'raise UserError("splits.json is of another year")')
    publisher.file.write_text(bad)
    said = in_subprocess("build", publisher.file, "--root", root, "--serial")
    assert said.complaint == "xmodal: splits.json is of another year"
    assert list(root.glob("records/*/*.parquet")) == []
    publisher.file.write_text(good)
    xmodal.done("build", publisher.file, "--root", root)
    assert tree_digest(str(root)) == expected


# ------------------------------------------------------------------------------------------------ what disks get wrong

CAN_MOUNT = subprocess.run(
    ["sh", "-c", "unshare -rm sh -c 'mount -t tmpfs none /mnt'"], capture_output=True, check=False
)
in_a_namespace = pytest.mark.skipif(CAN_MOUNT.returncode != 0, reason="this system lets nobody mount a tmpfs")


@pytest.mark.parametrize("limit", [0, 100, 2_000, 300_000])
def test_a_disk_that_takes_no_file_so_large_is_one_line_and_the_next_build_goes_on(
    limit: int, xmodal: Xmodal, publisher: Publisher, root: Path, tmp_path: Path
) -> None:
    (publisher.folder / "pictures/p004.jpg").write_bytes(b"large" * 100_000)
    expected = undisturbed(xmodal, publisher, tmp_path)
    before = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}));"
    said = in_subprocess("build", publisher.file, "--root", root, "--serial", before=before)
    assert "the disk takes no file that large: choose another root" in said.complaint
    xmodal.done("build", publisher.file, "--root", root)
    assert tree_digest(str(root)) == expected


@in_a_namespace
@pytest.mark.parametrize("size", [8, 60, 300])
def test_a_full_disk_is_one_line_and_the_next_build_goes_on_where_there_is_room(
    size: int, xmodal: Xmodal, publisher: Publisher, root: Path, tmp_path: Path
) -> None:
    """A disk of `size` kB that is made larger after the first build."""
    (publisher.folder / "pictures/p004.jpg").write_bytes(b"large" * 100_000)
    expected = undisturbed(xmodal, publisher, tmp_path)
    root.mkdir()
    script = """
root=$1 copy=$2 size=$3; shift 3
mount -t tmpfs -o size=${size}k none "$root"
"$@"; code=$?
mount -o remount,size=50m "$root"
"$@" >/dev/null 2>&1 || exit 99
cp -a "$root" "$copy"; exit $code"""
    prefix = ("unshare", "-rm", "sh", "-c", script, "sh", str(root), str(tmp_path / "copy"), str(size))
    said = in_subprocess("build", publisher.file, "--root", root, "--serial", prefix=prefix)
    assert re.search(rf"the disk of {root}[^ ]* is full: free some space; then", said.complaint)
    assert tree_digest(str(tmp_path / "copy")) == expected


@in_a_namespace
@pytest.mark.parametrize("command", ["build", "retry", "seal"])
def test_a_read_only_root_is_one_line(command: str, publisher: Publisher, root: Path) -> None:
    root.mkdir()
    script = 'mount -t tmpfs -o ro none "$1"; shift; exec "$@"'
    prefix = ("unshare", "-rm", "sh", "-c", script, "sh", str(root))
    serial = ["--serial"] if command in SERIAL else []
    said = in_subprocess(command, publisher.file, "--root", root, *serial, prefix=prefix)
    if command == "build":
        assert "the disk is read-only: choose another root" in said.complaint
    else:
        assert said.code == 0 or said.complaint


@in_a_namespace
def test_doctor_says_that_a_root_is_read_only(root: Path) -> None:
    root.mkdir()
    script = 'mount -t tmpfs -o ro none "$1"; shift; exec "$@"'
    said = in_subprocess("doctor", "--root", root, prefix=("unshare", "-rm", "sh", "-c", script, "sh", str(root)))
    assert (said.code, said.err) == (1, "")
    assert "Read-only file system" in said.out


# ------------------------------------------------------------------------------------------ what was damaged meanwhile


def damage(file: Path, how: str) -> None:
    data = file.read_bytes()
    if how == "gone":
        file.unlink()
    else:
        file.write_bytes({"changed": data[::-1], "cut": data[: len(data) // 2], "empty": b""}[how])


RECORD_KEEPING = (
    *(f"{stage}/{name}" for stage in ("sources", "records") for name in ("stage.json", "complete.json", "units.tsv")),
    *("sources/dataset.lock", "media/dataset.lock"),
)


@pytest.mark.parametrize("how", ["changed", "cut", "gone"])
@pytest.mark.parametrize("name", RECORD_KEEPING)
def test_no_command_trips_over_damaged_records(
    name: str, how: str, xmodal: Xmodal, publisher: Publisher, root: Path
) -> None:
    """It does its work, or complains in a line that names the file and what helps."""
    xmodal.done("build", publisher.file, "--root", root)
    stage, _, file = name.partition("/")
    victim = only(root / stage) / file
    damage(victim, how)
    setting = ("--set", "row_group=7")  # so that the sealed annotations are read
    for command in (["status"], ["plan", publisher.file, *setting], ["build", publisher.file, *setting]):
        said = xmodal(*command, "--root", root)
        if said.code:
            assert f"{victim.parent.name}/{file}" in said.complaint
            assert re.search("delete |verify --forget", said.complaint)
            assert "run the same command again" not in said.complaint


@pytest.mark.parametrize("how", ["changed", "cut", "gone"])
@pytest.mark.parametrize("name", RECORD_KEEPING)
def test_verify_names_damaged_records_and_after_forget_they_are_made_again(
    name: str, how: str, xmodal: Xmodal, publisher: Publisher, root: Path
) -> None:
    xmodal.done("build", publisher.file, "--root", root)
    before = tree_digest(str(root))
    stage, _, file = name.partition("/")
    victim = only(root / stage) / file
    damage(victim, how)
    if file != "complete.json" or how != "gone":  # without it, a directory is unfinished work and no more
        said = xmodal("verify", "--root", root)
        assert said.code == 1
        assert f"{victim.parent.name}/{file}" in said.out + said.err
        xmodal("verify", "--root", root, "--forget")
    xmodal.done("build", publisher.file, "--root", root)
    assert tree_digest(str(root)) == before
    assert xmodal("verify", "--root", root).code == 0


def test_a_file_that_may_not_be_read_is_not_said_to_be_written(
    xmodal: Xmodal, publisher: Publisher, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    xmodal.done("build", publisher.file, "--root", root)

    def refuse(file: Any, name: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), file.name)

    monkeypatch.setattr("hashlib.file_digest", refuse)
    assert f"no permission to read or write there: have it given, or choose another root ({root}/" in (
        xmodal("verify", "--root", root).complaint
    )


def test_an_output_of_another_layout_says_what_to_do(xmodal: Xmodal, publisher: Publisher, root: Path) -> None:
    xmodal.done("build", publisher.file, "--root", root)
    about = only(root / "records") / "stage.json"
    about.write_text(about.read_text().replace('"layout":1', '"layout":99'))
    (line,) = (line for line in xmodal("status", "--root", root).out.splitlines() if str(about) in line)
    assert "another root" in line


@pytest.mark.parametrize("how", ["changed", "cut", "empty"])
def test_a_corrupt_loose_record_is_named_and_its_unit_is_done_again_once_it_is_deleted(
    how: str, xmodal: Xmodal, publisher: Publisher, root: Path
) -> None:
    xmodal.done("build", publisher.file, "--root", root)
    before = tree_digest(str(root))
    folder = only(root / "records")
    (segment,) = (folder / "_runs/commits").glob("*.tsv")
    loose = folder / "_runs/commits/loose/tables"
    loose.parent.mkdir(exist_ok=True)
    segment.rename(loose)
    damage(loose, how)
    for name in ("complete.json", "units.tsv"):
        (folder / name).unlink()
    complaint = xmodal("build", publisher.file, "--root", root).complaint
    assert f"{loose} is corrupt: delete it and build again" in complaint
    assert not (folder / "complete.json").exists()
    loose.unlink()
    xmodal.done("build", publisher.file, "--root", root)
    assert tree_digest(str(root)) == before


@pytest.mark.parametrize("how", ["changed", "cut", "empty"])
def test_a_corrupt_ledger_is_named_and_costs_no_more_than_asking_again(
    how: str, xmodal: Xmodal, publisher: Publisher, root: Path
) -> None:
    xmodal.done("build", publisher.file, "--root", root)
    before = tree_digest(str(root))
    victim = min((root / "_runs/ledger/media/pictures").glob("*.tsv"))
    damage(victim, how)
    assert (
        f"{victim} is corrupt: `xmodal verify --forget --root {root}` removes it"
        in xmodal("status", "--root", root).out
    )
    xmodal("build", publisher.file, "--root", root)
    victim.unlink()
    xmodal.done("build", publisher.file, "--root", root)
    assert tree_digest(str(root)) == before


@pytest.mark.parametrize("how", ["changed", "cut", "empty"])
def test_a_corrupt_note_of_what_is_sealed_is_made_again(
    how: str, xmodal: Xmodal, publisher: Publisher, root: Path
) -> None:
    xmodal.done("build", publisher.file, "--root", root)
    before = tree_digest(str(root))
    damage(root / "_runs/ledger/media/pictures/sealed", how)
    xmodal.done("status", "--root", root)
    xmodal.done("build", publisher.file, "--root", root)
    assert tree_digest(str(root)) == before


def test_records_that_need_a_lost_file_say_which_and_what_helps(
    xmodal: Xmodal, publisher: Publisher, root: Path
) -> None:
    xmodal.done("build", publisher.file, "--root", root)
    shutil.rmtree(root / "blobs")
    complaint = xmodal("build", publisher.file, "--root", root, "--set", "row_group=7").complaint
    assert "verify --forget" in complaint
    assert "run the same command again" not in complaint


def test_what_anybody_prints_meanwhile_does_not_reach_the_result(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Ray does when a worker dies, and with what it kept back when it leaves."""

    def noisy(args: object) -> list[dict[str, bool]]:
        print("(raylet) A worker died")
        return [{"needed": False}]

    monkeypatch.setattr("pipelines.commands.installation.doctor.run", noisy)
    ray = SimpleNamespace(disconnect=lambda: print("(raylet) A worker died [repeated 2x]"))
    monkeypatch.setitem(sys.modules, "pipelines.engine.ray_runner", ray)
    assert main(["doctor", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == [{"needed": False}]
    assert said.err.count("A worker died") == 2
