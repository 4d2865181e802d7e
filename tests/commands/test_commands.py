"""Commands: each is one module, found because it exists, with help, examples, text and JSON."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import xmodal as library
from pipelines import commands
from pipelines.cli import main
from pipelines.commands._text import failures
from tests.commands.test_cli import REPOSITORY, Xmodal, in_subprocess, only
from tests.commands.test_cli import no_pauses as no_pauses
from tests.commands.test_cli import publisher as publisher
from tests.commands.test_cli import root as root
from tests.commands.test_cli import xmodal as xmodal
from tests.fetching.test_ledger import Publisher
from tests.toy_root import make_root
from tests.toy_root import one_thread as one_thread
from xmodal.detection.given_boxes import boxes_in_file

TOY = (
    *("view.corpus=pictures", "view.split=toy/train", "validation.corpus=pictures", "validation.split=toy/val"),
    *("view.captions_per_item=none", "validation.captions_per_item=none", "phase1.epochs=1", "batch_size=32"),
    *("model.width=16", "model.word_width=8"),
)


def in_fresh_python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-B", "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=False)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main([*arguments])
    assert ended.value.code == 0
    return capsys.readouterr().out


# -------------------------------------------------------------------------------------------------- help and discovery


@pytest.mark.parametrize("name", commands.load_all())
def test_every_command_has_a_summary_and_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = commands.load_all()[name]
    summary = commands.summary(command)
    assert 10 < len(summary) < 101
    shown = printed(capsys, name, "--help")
    assert summary in shown
    assert "examples:" in shown
    examples = [line.strip() for line in shown.partition("examples:\n")[2].splitlines() if "xmodal" in line]
    assert any(
        line.startswith((f"xmodal {name}", f'eval "$(xmodal {name}')) or f"; xmodal {name} " in line
        for line in examples
    )


def test_every_example_of_the_help_is_understood() -> None:
    parser, seen = commands.parser(), 0
    helps = [parser.format_help(), *(command.__doc__ or "" for command in commands.load_all().values())]
    for line in "\n".join(helps).splitlines():
        if not line.startswith("  xmodal ") or "|" in line or " > " in line:
            continue
        for part in re.split(r"\s{3,}", line.strip())[0].split("; "):
            parser.parse_args(shlex.split(re.sub(r" {4}.*", "", part))[1:])
            seen += 1
    assert seen > 40


def test_help_lists_every_command_once_under_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(capsys, "--help")
    for name in commands.load_all():
        assert len(re.findall(rf"^  {name} ", shown, re.MULTILINE)) == 1
    places = [
        shown.index(f"\n{title}:\n") for title in ("get data", "train and evaluate", "exchange", "this installation")
    ]
    assert places == sorted(places)
    for code in ("0 ", "1 ", "2 ", "3 ", "130 "):
        assert re.search(rf"^  {code} +\w", shown, re.MULTILINE)


def test_a_short_setting_is_of_the_stages_of_this_build(
    xmodal: Xmodal, publisher: Publisher, root: Path, tmp_path: Path
) -> None:
    flags = ("--root", root, "--raw", publisher.folder, "--serial", "--set", "deadline=9")
    assert "no stage of this" not in xmodal("plan", f"{publisher.file}/pixels", *flags).err
    assert "say which one" in xmodal("plan", publisher.file, *flags).complaint


def test_the_version_is_the_librarys(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "--version") == f"xmodal {library.__version__}\n"


def test_python_dash_m_pipelines_is_the_command() -> None:
    command = [sys.executable, "-B", "-m", "pipelines", "--version"]
    said = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=False)
    assert (said.returncode, said.stdout) == (0, f"xmodal {library.__version__}\n")


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_knows_commands_and_flags(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in ("build", "import", "settings", "--most-absent", "--attention"):
        assert word in script


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("xmodal ver", {"verify"}),
        ("xmodal build tgi", {"tgif", "tgif/records", "tgif/frames", "tgif.csv"}),
        ("xmodal build coco/resn", {"coco/resnet"}),
        ("xmodal settings vs", {"vsepp"}),
        ("xmodal train vs", {"vsepp"}),
        ("xmodal status --root data mr", {"mrw"}),
        ("xmodal check pcm", {"pcme"}),
    ],
)
def test_bash_takes_the_completion(words: str, completed: set[str], tmp_path: Path) -> None:
    pytest.importorskip("shtab")
    script = tmp_path / "complete.sh"
    made = in_fresh_python("import sys; from pipelines.cli import main; main()", "completion", "bash")
    script.write_text(made.stdout)
    (tmp_path / "tgif.csv").touch()
    typed = f"COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))"
    ask = f"source {script}; {typed}; _shtab_xmodal; echo ${{COMPREPLY[@]}}"
    said = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert completed <= set(said.stdout.split()), said
    assert all(word.startswith(words.split()[-1]) for word in said.stdout.split())


# ----------------------------------------------------------------------------------------------- what a person may type


def test_arguments_may_stand_in_a_file(xmodal: Xmodal, publisher: Publisher, root: Path, tmp_path: Path) -> None:
    file = tmp_path / "usual.txt"
    file.write_text(f"# where it is\n--root\n{root}\n\n  # and how\n--set\nrow_group=3\n")
    rows = xmodal.done("build", publisher.file, f"@{file}")["outputs"]
    about = json.loads((Path(rows[1]["path"]) / "stage.json").read_text())
    assert about["config"]["row_group"] == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["@nowhere.txt"], "nowhere.txt"),
        (["bild"], "invalid choice: 'bild'"),
        (["build", "coco"], "--root.*where outputs are: --root data"),
        (["build", "coco", "--root", "x", "--most-absent", "2"], "a share from 0 to 1, not 2"),
        (["build", "coco", "--root", "x", "--most-absent", "few"], "a share from 0 to 1, not few"),
        (["demo", "--items", "many"], "a whole number, not many"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments_exit_with_2(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert re.search(said, capsys.readouterr().err.replace("\n", " "))


@pytest.mark.parametrize("command", ["build", "verify"])
def test_quiet_leaves_stderr_empty(command: str, xmodal: Xmodal, publisher: Publisher, root: Path) -> None:
    loud = xmodal("build", publisher.file, "--root", root)
    assert "records: 1/1 units" in loud.err
    more = [publisher.file, "--set", "row_group=5"] if command == "build" else []
    said = xmodal(command, *more, "--root", root, "--quiet")
    assert (said.code, said.err) == (0, "")
    assert said.out


def test_long_commands_can_be_quiet() -> None:
    long = "plan build retry verify train evaluate look stats reproduce publish import export vectors demo"
    for name in long.split():
        needed = {"import": ["x", "--name", "y"], "export": ["x", "y"], "publish": ["x", "--out", "y"]}.get(name, ["x"])
        needed = [] if name in ("demo", "verify", "reproduce") else needed
        needed += ["--probes"] if name == "look" else []
        needed += [] if name == "export" else ["--root", "r"]
        assert commands.parser().parse_args([name, *needed, "--quiet"]).quiet


def test_publish_takes_one_corpus_as_its_usage_says(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        commands.parser().parse_args(["publish", "coco", "cub", "--root", "r", "--out", "o"])
    said = capsys.readouterr().err
    assert "unrecognized arguments: cub" in said
    with pytest.raises(SystemExit):
        commands.parser().parse_args(["publish", "--help"])
    assert "[CORPUS" not in capsys.readouterr().out


def test_a_root_that_cannot_be_made_is_not_said_to_be_damaged(xmodal: Xmodal, publisher: Publisher) -> None:
    complaint = xmodal("build", publisher.file, "--root", "/proc/nowhere/root").complaint
    assert "/proc/nowhere/root" in complaint
    assert "choose another root" in complaint
    assert "verify" not in complaint


def test_a_file_may_be_given_by_the_name_that_a_stage_gives_it(
    xmodal: Xmodal, publisher: Publisher, root: Path
) -> None:
    said = xmodal("plan", publisher.file, "--root", root, "--file", "x.pth").complaint
    assert "--file takes NAME=PATH, not 'x.pth'; the names are: " in said
    assert "weights" in said
    said = xmodal("plan", publisher.file, "--root", root, "--file", "weigths=x.pth").complaint
    assert "no stage takes a file 'weigths' (do you mean weights?); the names are: " in said
    weights = publisher.file.with_name("x.pth")
    said = xmodal("plan", publisher.file, "--root", root, "--file", f"weights={weights}").complaint
    assert f"there is no file {weights}" in said
    weights.write_bytes(b"weights")
    assert xmodal.done("plan", publisher.file, "--root", root, "--file", f"weights={weights}")["stages"]
    assert (
        "no stage of this plan reads --file weights"
        in xmodal("plan", publisher.file, "--root", root, "--file", f"weights={weights}").err
    )


# ------------------------------------------------------------------------------------------------- settings and recipes


def test_settings_of_a_stage_are_typed_and_say_where_they_are_documented(xmodal: Xmodal) -> None:
    rows = {row["name"]: row for row in xmodal.done("settings", "resnet")["settings"]}
    assert (rows["resnet.crop"]["type"], rows["resnet.crop"]["default"]) == ("int", 224)
    assert "grid|pooled" in rows["resnet.output"]["type"]
    assert "records.row_group" in rows, "it is built before it"
    for row in rows.values():
        file, _, line = row["documented"].partition(":")
        declared = (REPOSITORY / file).read_text().splitlines()[int(line) - 1]
        assert declared.strip().startswith(row["name"].partition(".")[2] + ":")
    assert {row["name"] for row in xmodal.done("settings", "coco/resnet")["settings"]} == set(rows)
    shown = xmodal("settings", "resnet").out
    assert re.search(r"^resnet\.crop +int +224 +xmodal/features/networks\.py:\d+$", shown, re.MULTILINE)


def test_settings_say_what_is_in_a_file_that_a_stage_reads(xmodal: Xmodal, tmp_path: Path) -> None:
    shown = xmodal("settings", "regions").out
    form = r"--file boxes=PATH: a line a box: the picture's id, left, top, right and bottom .*'(a/0\.jpg<tab>.*)',"
    example = re.search(form, shown)
    assert example, shown
    (tmp_path / "boxes.tsv").write_text(example[1].replace("<tab>", "\t") + "\n")
    assert boxes_in_file(tmp_path / "boxes.tsv") == {"a/0.jpg": ((10.0, 20.0, 110.5, 90.0),)}
    assert "it reads a file: --file places=PATH: scores of tags: " in xmodal("settings", "tags").out
    asked = "`xmodal settings STAGE` lists them and says what is in each"
    for command in ("features", "build"):
        assert asked in " ".join(in_subprocess(command, "--help").out.split())


def test_settings_of_a_recipe_are_what_train_may_set(xmodal: Xmodal) -> None:
    rows = {row["name"]: row["default"] for row in xmodal.done("settings", "vsepp")["settings"]}
    assert rows["model.width"] == 1024
    assert rows["phase1.epochs"] == 30
    assert (rows["phase1.optimiser.learning_rate"], rows["phase1.weights.ranking"]) == (2e-4, 1.0)
    shown = xmodal("settings", "vsepp").out
    assert re.search(r"phase1\.weights\.ranking +float +1\.0\n", shown)
    assert "no stage or recipe 'vsep' (do you mean vsepp?)" in xmodal("settings", "vsep").complaint
    assert "no stage 'vsepp'; there are: " in xmodal("settings", "coco/vsepp").complaint


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("coco/frames", "coco has no clips: frames is for clips, not pictures"),
        ("coco/clips", "coco has no clips: frames is for clips, not pictures"),
        ("tgif/plausible", "tgif has no labels of kind category, which plausible needs"),
        ("PICTURES/frames", "pictures has no clips: frames is for clips, not pictures"),
        ("nowhere.py/frames", "no corpus file nowhere.py"),
    ],
)
def test_settings_of_a_stage_that_the_corpus_cannot_have_are_refused(name: str, said: str, xmodal: Xmodal) -> None:
    pictures = str(REPOSITORY / "tests/fixtures/pictures.py")
    assert said in xmodal("settings", name.replace("PICTURES", pictures)).complaint
    assert xmodal("settings", f"{pictures}/resnet").code == 0
    assert xmodal("settings", "mylist/frames").code == 0, "a list is known by its root alone"


@pytest.mark.parametrize("stage", ["sources", "records", "media", "frames", "sentences", "coco/resnet"])
def test_every_stage_can_be_asked_for_its_settings(stage: str, xmodal: Xmodal) -> None:
    said = xmodal("settings", stage)
    assert said.code == 0
    assert said.out


def test_recipes_say_their_model_corpus_and_table(xmodal: Xmodal) -> None:
    rows = {row["name"]: row for row in xmodal.done("recipes")}
    assert (rows["pvse-coco"]["model"], rows["pvse-coco"]["corpus"]) == ("pvse", "coco")
    assert "pvse Table 2" in rows["pvse-coco"]["reproduces"]
    assert re.search(r"^pvse-coco +pvse +coco +.*pvse Table 2", xmodal("recipes").out, re.MULTILINE)


def test_build_help_names_stages_and_where_settings_are(capsys: pytest.CaptureFixture[str]) -> None:
    from pipelines.stages import targets

    shown = " ".join(printed(capsys, "build", "--help").split())
    assert "xmodal settings" in shown
    assert [stage for stage in targets() if stage not in shown] == []


# ----------------------------------------------------------------------------------------- what is absent, what is said


def test_truncated_pictures_are_said_to_be_among_the_rows() -> None:
    assert failures({"absent": 1, "truncated": 1, "unreadable": 2}) == ", 1 of them truncated, 1 absent, 2 unreadable"


@pytest.mark.parametrize(("share", "code"), [(None, 3), ("0.5", 3), ("1", 0)])
def test_a_build_whose_media_are_all_absent_does_not_exit_with_0(
    share: str | None, code: int, xmodal: Xmodal, publisher: Publisher, root: Path
) -> None:
    publisher.withdraw(*(path.name for path in (publisher.folder / "pictures").iterdir()))
    most = ["--most-absent", share] if share else []
    said = xmodal("build", publisher.file, "--root", root, *most)
    assert said.code == code
    told = "pictures/media: 8 of 8 absent or unusable, most often http_404 ("
    assert (told in said.out) == (code == 3)
    assert only(root / "media"), "it is built all the same"


def test_a_share_of_absent_media_may_be_too_much(xmodal: Xmodal, publisher: Publisher, root: Path) -> None:
    publisher.withdraw("p001.jpg", "p005.jpg")
    assert xmodal("build", publisher.file, "--root", root).code == 0
    assert xmodal("build", publisher.file, "--root", root, "--most-absent", "0.25").code == 0
    said = xmodal("build", publisher.file, "--root", root, "--most-absent", "0.2", "--json")
    assert (said.code, said.json["too_much_absent"]) == (3, ["pictures/media"])
    assert xmodal("build", f"{publisher.file}/records", "--root", root, "--most-absent", "0").code == 0


def test_a_log_beside_the_facts_of_a_run_keeps_what_progress_said(
    xmodal: Xmodal, publisher: Publisher, root: Path
) -> None:
    xmodal.done("build", publisher.file, "--root", root, "--quiet")
    runs = only(root / "records") / "_runs"
    (facts,) = runs.glob("*.json")
    lines = facts.with_suffix(".log").read_text().splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ records: 1/1 units \(100 %\).*", lines[0])
    assert lines[-1].endswith("Z finished")


def test_the_log_of_a_run_that_failed_says_why(xmodal: Xmodal, publisher: Publisher, root: Path) -> None:
    with (publisher.folder / "captions.tsv").open("a") as file:
        file.write("p000.jpg\tone caption more\n")
    assert xmodal("build", publisher.file, "--root", root).code == 1
    (log,) = (only(root / "records") / "_runs").glob("*.log")
    assert "ended by UserError: " in log.read_text().splitlines()[-1]


def test_printed_commands_can_be_pasted(xmodal: Xmodal, publisher: Publisher, tmp_path: Path) -> None:
    root = tmp_path / "my root ü"
    xmodal.done("build", publisher.file, "--root", root)
    table = only(root / "records") / "captions.parquet"
    table.write_bytes(table.read_bytes()[::-1])
    (hint,) = re.findall(r"`xmodal ([^`]*)`", xmodal("verify", "--root", root).out)
    assert shlex.split(hint) == ["verify", "--root", str(root), "--forget"]


# -------------------------------------------------------------------------------------------------- training and torch


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "vsepp", "--root", "ROOT"],
        ["evaluate", "ROOT", "--root", "ROOT"],
        ["look", "ROOT", "--root", "ROOT", "--attention", "ROOT/maps"],
        ["demo", "--root", "ROOT/demo", "--items", "20", "--serial"],
        ["recipes"],
    ],
    ids=lambda value: value[0],
)
def test_without_torch_one_line_says_what_to_install(arguments: list[str], tmp_path: Path) -> None:
    code = "import sys; sys.modules['torch'] = None; from pipelines.cli import main; sys.exit(main())"
    said = in_fresh_python(code, *(text.replace("ROOT", str(tmp_path)) for text in arguments))
    assert said.returncode == 1
    assert said.stderr == "xmodal: torch is not installed: pip install -e '.[train]' in the checkout\n"
    assert list(tmp_path.iterdir()) == []


def test_without_torch_a_build_of_features_asks_for_no_file(tmp_path: Path) -> None:
    code = "import sys; sys.modules['torch'] = None; from pipelines.cli import main; sys.exit(main())"
    root = tmp_path / "data"
    said = in_fresh_python(code, "build", "coco/resnet", "--root", root, "--serial")
    cure = "torch is not installed: pip install -e '.[train]' in the checkout"
    assert (said.returncode, said.stderr) == (1, f"xmodal: coco/resnet cannot be built here: {cure}\n")
    assert not root.exists()


def test_without_torch_features_that_are_built_are_up_to_date(xmodal: Xmodal, publisher: Publisher, root: Path) -> None:
    code = "import sys; sys.modules['torch'] = None; from pipelines.cli import main; sys.exit(main())"
    tiny = ("--set", "resnet.network=resnet18", "--set", "resnet.weights=random:0", "--set", "resnet.crop=32")
    where = ("--root", root, "--raw", publisher.folder, "--serial", "--most-absent", "1")
    build = ("build", f"{publisher.file}/resnet", *where, *tiny, "--set", "resnet.resize=32")
    assert xmodal(*build).code == 0
    said = in_fresh_python(code, *build)
    assert said.returncode == 0, said.stderr
    assert "up to date" in said.stdout


def test_without_shtab_one_line_says_what_to_install() -> None:
    code = "import sys; sys.modules['shtab'] = None; from pipelines.cli import main; sys.exit(main())"
    said = in_fresh_python(code, "completion", "bash")
    assert (said.returncode, said.stderr) == (1, "xmodal: shtab is not installed: pip install shtab\n")


def test_a_module_that_nobody_names_is_a_defect_and_not_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(args: object) -> Any:
        raise ModuleNotFoundError("No module named 'pipelines.lost'", name="pipelines.lost")

    monkeypatch.setattr("pipelines.commands.installation.doctor.run", broken)
    with pytest.raises(ModuleNotFoundError):
        main(["doctor"])


@pytest.fixture(scope="module")
def trainable(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_root(tmp_path_factory.mktemp("trainable"))


def train(xmodal: Xmodal, root: str, run: Path, *more: str, flags: tuple[str, ...] = ()) -> Any:
    settings = [word for setting in (*TOY, *more) for word in ("--set", setting)]
    return xmodal("train", "vsepp", "--root", root, "--run", run, *settings, *flags)


def test_a_split_of_several_corpora_says_which_flag_chooses(xmodal: Xmodal, trainable: str, tmp_path: Path) -> None:
    root = tmp_path / "two corpora"
    shutil.copytree(trainable, root)
    (tmp_path / "mylist.jsonl").write_text('{"url": "a.jpg", "caption": "a cat"}\n')
    xmodal.done("build", tmp_path / "mylist.jsonl/records", "--root", root)
    features, out = only(root / "resnet"), tmp_path / "x.npy"
    complaint = xmodal("export", features, out, "--split", "toy/test").complaint
    assert "has records of several corpora: name one with --corpus: " in complaint
    assert xmodal.done("export", features, out, "--split", "toy/test", "--corpus", "pictures")["items"] == 11
    complaint = xmodal("stats", "coco", "--root", root).complaint
    (hint,) = re.findall(r"`xmodal ([^`]*)`", complaint)
    assert shlex.split(hint) == ["build", "coco/records", "--root", str(root)]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("recipe.seed=-1", r"seed -1 must be 0 or more"),
        ("phase1.frozen=foo", r"no parameter is named 'foo'; there are: "),
        ("phase1.frozen=[]", r"no parameter is named '\[\]'; there are: "),
        ("phase1.frozen=*", r"frozen=\* leaves no parameter to train"),
        ("text.minimum_count=9999", r"no word of the captions is in the vocabulary.*minimum_count=9999"),
    ],
)
def test_a_setting_that_cannot_be_trained_with_is_one_line_and_writes_nothing(
    setting: str, said: str, xmodal: Xmodal, trainable: str, tmp_path: Path
) -> None:
    found = train(xmodal, trainable, tmp_path / "run", setting)
    assert found.code == 1
    assert re.search(said, found.err.splitlines()[-1])
    assert not (tmp_path / "run").exists()


def test_training_says_how_many_words_it_knows_and_counts_from_one(
    xmodal: Xmodal, trainable: str, tmp_path: Path
) -> None:
    said = train(xmodal, trainable, tmp_path / "my run", "text.minimum_count=2")
    assert said.code == 0, said.err
    assert re.search(r"^vocabulary: [\d,]+ words; \d+\.\d% of the captions' words are not in it$", said.err, re.M)
    assert "warning" not in said.err
    assert re.search(r"^epoch 1: ", said.err, re.M)
    assert "epoch 0" not in said.err
    assert "on validation after epoch 1 of phase 1, " in said.out
    (hint,) = re.findall(r"`xmodal ([^`]*)`", said.out)
    assert shlex.split(hint) == ["evaluate", str(tmp_path / "my run"), "--root", trainable]
    again = train(xmodal, trainable, tmp_path / "my run", "text.minimum_count=2", flags=("--quiet",))
    assert (again.code, again.err, again.out) == (0, "", said.out)


def test_training_warns_where_most_words_are_unknown(xmodal: Xmodal, trainable: str, tmp_path: Path) -> None:
    for least in (2**power for power in range(3, 12)):
        said = train(xmodal, trainable, tmp_path / f"run{least}", f"text.minimum_count={least}")
        if said.code:
            pytest.fail("no minimum count leaves less than half of the words")
        share = float(re.findall(r"([\d.]+)% of the captions' words", said.err)[0])
        assert ("warning: less than half of the captions' words are known" in said.err) == (share > 50)
        if share > 50:
            break


@pytest.mark.parametrize(("data", "said"), [(b"@SELF\n", "names itself"), (b"caf\xe9\n", "is not UTF-8 text")])
def test_a_file_of_arguments_that_cannot_be_read_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes, said: str
) -> None:
    file = tmp_path / "arguments"
    file.write_bytes(data.replace(b"SELF", str(file).encode()))
    with pytest.raises(SystemExit) as ended:
        main([f"@{file}"])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]
