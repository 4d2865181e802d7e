"""`xmodal evaluate FILE`: released weights, on the words they were released with, score as the model that was saved."""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pipelines.cli import main
from pipelines.engine.building import build
from pipelines.papers.recipe_runs import read_for
from tests.evaluation.test_checkpoints import CNN, OFFICIAL, as_vsepp, official_state, saved
from tests.toy_root import Facts, facts, fit, make_root, recipe
from tests.toy_root import one_thread as one_thread
from tests.training.test_trunk import make_root as make_pictures
from xmodal import find
from xmodal.batches.dataset import open_dataset
from xmodal.batches.examples import Examples
from xmodal.batches.reader import Reader
from xmodal.evaluation.released_weights import PLACES, convert
from xmodal.evaluation.run_metrics import evaluate
from xmodal.features.store import FeatureStore
from xmodal.models import Inputs, Scorer
from xmodal.models.pcme import PCMEConfig, own_name
from xmodal.models.pvse import PVSEConfig
from xmodal.models.scan import SCANConfig
from xmodal.models.vsepp import VSEPPConfig
from xmodal.progress import Silence
from xmodal.recipes import Config, Features, Pixels, View
from xmodal.records.views import caption_texts
from xmodal.root.storage import open_storage
from xmodal.text.tokenizers import tokenizer
from xmodal.text.vocabularies import SPECIALS, ReleasedVocabulary, Vocabulary
from xmodal.training.finetuning import WithBackbone, attach_backbone
from xmodal.training.picture_crops import picture_reader
from xmodal.training.run_setup import Setup
from xmodal.training.validation import measure

ITEMS, WIDTH = 120, 12
PVSE = PVSEConfig(width=10, word_width=6, legacy_last_output=True)
PCME = PCMEConfig(width=10, word_width=6)
VSEPP = VSEPPConfig(width=10, word_width=6, normalise_features=False)
SCAN = SCANConfig("image_to_text", "logsumexp", smoothing=4.0, sharpness=5.0, width=10, word_width=6)
SCAN_FLAGS = {"cross_attn": "i2t", "agg_func": "LogSumExp", "lambda_softmax": 4.0, "lambda_lse": 5.0}
Said = tuple[int, str, str]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Features as toy_root's, of 64 numbers; "grid", 49 places of 12 numbers; and "pooled", 12 numbers."""
    root = make_root(tmp_path_factory.mktemp("toy"), items=ITEMS)
    for name, places in (("grid", 49), ("pooled", 0)):
        build(replace(facts(Facts(ITEMS, width=WIDTH, places=places)), name=name), open_storage(root))
    return root


@pytest.fixture(scope="module")
def words(root: str) -> dict[str, int]:
    """Every word of the captions, with ids in an order that is not ours; the specials are somewhere among them."""
    view = View("pictures", "toy/test")
    found = Vocabulary.build(caption_texts(find(root, "records")[0], view), "nltk", 1).words
    order = np.random.default_rng(0).permutation(len(found)).tolist()
    return dict(zip(found, order, strict=True))


def model_of(config: Config, words: int) -> nn.Module:
    torch.manual_seed(0)
    model = config.build(Inputs(WIDTH, words, 0))
    assert isinstance(model, nn.Module)
    return model.eval()


HEADS = {"image_mean.": "img_enc.pie_net.", "text_mean.": "txt_enc.pie_net."} | {
    **{"image_spread.": "img_enc.uncertain_net.fc2.", "image_sigma.": "img_enc.uncertain_net."},
    **{"sentence_spread.": "txt_enc.uncertain_net.rnn.", "text_sigma.": "txt_enc.uncertain_net."},
}
LAYERS = {".local.": ".fc.", ".hidden.": ".w_1.", ".score.": ".w_2.", ".norm.": ".layer_norm."}


def as_pcme(model: nn.Module) -> dict[str, Any]:
    state = dict(model.state_dict())
    criterion = {"negative_scale": state.pop("scale"), "shift": state.pop("shift")}
    return {"model": {_pcme_name(name): value for name, value in state.items()}, "criterion": criterion}


def _pcme_name(ours: str) -> str:
    (beginning,) = [each for each in OFFICIAL | HEADS if ours.startswith(each)]
    official = (HEADS | OFFICIAL)[beginning] + ours.removeprefix(beginning)
    for layer, theirs in LAYERS.items():
        official = official.replace(layer, theirs)
    assert own_name(official) == ours
    return official


def content(config: Config, model: nn.Module) -> dict[str, Any]:
    """As the authors' code saves it."""
    if config == PCME:
        return as_pcme(model)
    if config in (VSEPP, SCAN):
        return as_vsepp(official_state(model), **(SCAN_FLAGS if config == SCAN else {}))
    return official_state(model)


class Vocab:
    """Pickled by the name that the official code has for it."""

    def __init__(self, word2idx: dict[str, int]) -> None:
        self.word2idx, self.idx = word2idx, len(word2idx)
        self.idx2word = {number: word for word, number in word2idx.items()}


def pickled(word2idx: dict[str, int], protocol: int, module: str) -> bytes:
    """The class is called `module`.Vocabulary in the bytes, whatever it is called here."""
    made = type("Vocabulary", (Vocab,), {"__module__": "stand_in"})(word2idx)
    stand_in = type(os)("stand_in")
    stand_in.Vocabulary = type(made)  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, "stand_in", stand_in)
        data = pickle.dumps(made, protocol)
    there, named = ((b"c" + name.encode() + b"\nVocabulary\n") for name in ("stand_in", module))
    assert data.count(there) == 1
    return data.replace(there, named)


VOCABULARIES: dict[str, Callable[[dict[str, int]], bytes]] = {
    "coco_vocab.json": lambda words: json.dumps(vars(Vocab(words))).encode(),
    "coco_vocab.pkl": lambda words: pickle.dumps(vars(Vocab(words)), 4),
    "vsepp_vocab.pkl": lambda words: pickled(words, 2, "__main__"),
    "pvse_vocab.pkl": lambda words: pickled(words, 3, "vocab"),
}


@pytest.fixture
def command(root: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """What `xmodal evaluate tmp_path/NAME` says, on the toy corpus."""

    def run(name: str, *arguments: str) -> Said:
        where = ("--root", root, *(() if "--corpus" in arguments else ("--corpus", "pictures")))
        code = main(["evaluate", str(tmp_path / name), *where, *arguments])
        return code, *capsys.readouterr()

    return run


def vocabulary_at(path: Path, words: dict[str, int]) -> tuple[str, str]:
    path.write_bytes(VOCABULARIES[path.name](words))
    return "--vocabulary", str(path)


class ByTheFile:
    """The ids of captions, written the slow way."""

    def __init__(self, words: dict[str, int]) -> None:
        self.words = words

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, caption: str) -> NDArray[np.int32]:
        inner = [self.words.get(word, self.words["<unk>"]) for word in tokenizer("nltk")(caption)]
        return np.array([self.words["<start>"], *inner, self.words["<end>"]], np.int32)


def directly(root: str, model: nn.Module, words: dict[str, int], stage: str, split: str = "toy/test") -> Any:
    store = FeatureStore(find(root, stage)[0])
    examples = Examples.of(find(root, "records")[0], View("pictures", split), store, ByTheFile(words))
    assert isinstance(model, Scorer)
    scores = measure(model, Reader(examples, store), Silence())["all"]
    return scores.rsum, scores.visual_to_text["Mean R"], scores.text_to_visual["Mean R"]


def told(report: Any) -> Any:
    scores = report["scores"]["all"]
    return scores["rsum"], scores["visual_to_text"]["mean_rank"], scores["text_to_visual"]["mean_rank"]


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("config", [PVSE, PCME, VSEPP, SCAN])
def test_a_file_scores_as_the_model_that_was_saved(
    config: Config, vocabulary: str, root: str, words: dict[str, int], tmp_path: Path, command: Callable[..., Said]
) -> None:
    model, stage = model_of(config, len(words)), "pooled" if config == VSEPP else "grid"
    saved(tmp_path / "model.pth", content(config, model))
    given = vocabulary_at(tmp_path / vocabulary, words)
    code, out, err = command("model.pth", *given, "--set", f"visual.stage={stage}", "--json")
    assert code == 0, err
    report = json.loads(out)
    assert told(report) == directly(root, model, words, stage)
    ours = {word: number for number, word in enumerate([*SPECIALS, *(w for w in words if w not in SPECIALS)])}
    assert told(report) != directly(root, model, ours, stage)
    layout = {PVSE: "PVSE", PCME: "PCME", VSEPP: "VSE++", SCAN: "SCAN"}[config]
    assert report["recipe"] == f"{layout} of model.pth, words of {vocabulary}"
    assert report["features"] == f"{stage}/{find(root, stage)[0].identity}"
    assert (report["corpus"], report["split"], report["seen"]) == ("pictures", "toy/test", None)
    assert len(report["fingerprint"]) == 64


def test_the_report_is_text_and_latex_too_and_says_whose_features_were_read(
    words: dict[str, int], tmp_path: Path, command: Callable[..., Said]
) -> None:
    saved(tmp_path / "model.pth", official_state(model_of(PVSE, len(words))) | CNN)
    given = (*vocabulary_at(tmp_path / "coco_vocab.json", words), "--set", "visual.stage=grid", "--split", "toy/val")
    code, text, _ = command("model.pth", *given)
    assert code == 0
    assert text.startswith("PVSE of model.pth, words of coco_vocab.json (")
    assert "on pictures toy/val: " in text
    assert "by toynet random:0 (sha256 abcd), in place of the CNN in the file; " in text
    code, latex, _ = command("model.pth", *given, "--latex")
    assert (code, latex.count(r"\begin{tabular}")) == (0, 2)
    assert latex.startswith("% PVSE of model.pth")


def test_fewer_captions_and_another_score_are_asked_for_by_name(
    root: str, words: dict[str, int], tmp_path: Path, command: Callable[..., Said]
) -> None:
    model = model_of(PCME, len(words))
    saved(tmp_path / "model.pth", as_pcme(model))
    given = (*vocabulary_at(tmp_path / "coco_vocab.json", words), "--set", "visual.stage=grid", "--json")
    code, out, _ = command("model.pth", *given, "--set", "view.captions_per_item=2")
    assert (code, json.loads(out)["captions"]) == (0, 2 * json.loads(out)["items"])
    code, out, _ = command("model.pth", *given, "--distance", "elk")
    by_elk = model_of(replace(PCME, distance="elk"), len(words))
    assert (code, told(json.loads(out))) == (0, directly(root, by_elk, words, "grid"))
    assert json.loads(out)["recipe"].endswith(", by elk")
    assert json.loads(out)["floats_per_item"] == 2 * 10
    _, text, _ = command("model.pth", *given[:-1], "--distance", "match_probability")
    assert "; kept of an item: 90 floats" in text


def test_a_runs_weights_are_evaluated_as_the_run_and_its_words_can_be_read(
    root: str, tmp_path: Path, command: Callable[..., Said], capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(fit(recipe(1), root, str(tmp_path / "run")).run)
    assert main(["evaluate", str(run / "best.pt"), "--root", root, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(evaluate(str(run), Setup(root), "toy/test").to_json())
    code, _, err = command("run/best.pt", "--vocabulary", str(run / "vocabulary.txt"))
    assert (code, "a run knows its own" in err) == (1, True)
    text = Vocabulary.from_bytes((run / "vocabulary.txt").read_bytes(), "here")
    saved(tmp_path / "model.pth", content(VSEPP, model := model_of(VSEPP, len(text))))
    shutil.copy(run / "vocabulary.txt", tmp_path)
    given = ("--vocabulary", str(tmp_path / "vocabulary.txt"), "--set", "visual.stage=pooled", "--json")
    code, out, _ = command("model.pth", *given)
    words = {word: number for number, word in enumerate(text.words)}
    assert (code, told(json.loads(out))) == (0, directly(root, model, words, "pooled"))


@pytest.mark.parametrize(
    ("config", "arguments", "message"),
    [
        (PVSE, ("--set", "visual.stage=pooled"), "model.pth (PVSE) reads 49 x 12 an item, but "),
        (PCME, (), r"model.pth (PCME) reads 49 x 12 an item, but "),
        (VSEPP, (), r"has 64: name other features with --set visual.stage=STAGE"),
        (SCAN, ("--set", "visual.stage=pooled"), "model.pth (SCAN) reads rows of any number, each 12 an item, but "),
        (replace(PVSE, visual="video"), ("--set", "visual.stage=grid"), "(PVSE) reads rows of any number, each 12 an"),
        (PVSE, ("--set", "visual.stage=detected"), "no 'detected' under"),
        (PVSE, ("--set", "stage=grid", "--distance", "elk"), "PVSE has one score, so 'elk' cannot be chosen"),
        (PVSE, ("--set", "margin=1"), "no setting 'margin'; there are: view.corpus"),
        (PVSE, ("--set", "stage=grid", "--split", "toy/dev"), "has no split 'toy/dev'"),
        (PVSE, ("--corpus", "coco"), "no corpus 'coco' under"),
        (PVSE, ("--set", "stage=grid", "--device", "tpu"), "no device 'tpu'"),
    ],
)
def test_what_does_not_fit_the_file_is_refused(
    config: Config,
    arguments: tuple[str, ...],
    message: str,
    words: dict[str, int],
    tmp_path: Path,
    command: Callable[..., Said],
) -> None:
    saved(tmp_path / "model.pth", content(config, model_of(config, len(words))))
    code, out, err = command("model.pth", *vocabulary_at(tmp_path / "coco_vocab.json", words), *arguments)
    assert (code, out) == (1, "")
    assert message in err


def test_features_of_another_network_than_that_in_the_file_are_refused(
    words: dict[str, int], tmp_path: Path, command: Callable[..., Said]
) -> None:
    layers = [f"img_enc.cnn.layer3.{block}.conv{n}.weight" for block in range(36) for n in (1, 2, 3)]
    state = official_state(model_of(PVSE, len(words))) | {name: torch.ones(1) for name in layers}
    assert convert(state).network == "resnet152"
    saved(tmp_path / "model.pth", state)
    given = vocabulary_at(tmp_path / "coco_vocab.json", words)
    code, _, err = command("model.pth", *given, "--set", "visual.stage=grid")
    assert code == 1
    assert "was trained with a resnet152, but " in err
    assert "has features of toynet: build them with --set resnet.network=resnet152" in err


@pytest.mark.parametrize(
    ("blocks", "convolutions", "network"),
    [(2, 2, "resnet18"), (6, 2, "resnet34"), (6, 3, "resnet50"), (23, 3, "resnet101"), (5, 3, None), (0, 0, None)],
)
def test_the_network_in_a_file_is_known_by_its_blocks(blocks: int, convolutions: int, network: str | None) -> None:
    layers = [f"img_enc.cnn.layer3.{b}.conv{n + 1}.weight" for b in range(blocks) for n in range(convolutions)]
    state: dict[str, Tensor] = official_state(model_of(PVSE, 9)) | {name: torch.ones(1) for name in layers}
    assert convert(state).network == network


def test_the_words_must_be_given_and_be_those_of_the_weights(
    words: dict[str, int], tmp_path: Path, command: Callable[..., Said]
) -> None:
    saved(tmp_path / "model.pth", official_state(model_of(PVSE, len(words) + 3)))
    code, _, err = command("model.pth")
    assert (code, "model.pth is weights alone: add --vocabulary" in err) == (1, True)
    code, _, err = command("model.pth", *vocabulary_at(tmp_path / "coco_vocab.json", words))
    assert code == 1
    assert f"coco_vocab.json has {len(words)} words, but " in err
    assert f"model.pth was trained with {len(words) + 3}: give the vocabulary that was released with it" in err
    code, _, err = command("other.pth", "--vocabulary", str(tmp_path / "coco_vocab.json"))
    assert (code, "other.pth: cannot be read: No such file" in err) == (1, True)
    code, _, err = command("run", "--set", "visual.stage=grid")
    assert (code, "belong to a file of weights" in err) == (1, True)


@pytest.mark.parametrize(
    ("config", "corpus", "split", "view", "visual"),
    [
        (PVSE, "coco", None, View("coco", "karpathy/test", captions_per_item=5), Features("resnet")),
        (VSEPP, "coco", "karpathy/val", View("coco", "karpathy/val", captions_per_item=5), Features("resnet")),
        (PCME, "cub", None, View("cub", "pcme/test"), Features("resnet")),
        (PVSE, "tgif", "test", View("tgif", "test", captions_per_item=1), Features("clips", frames=8, ends=6)),
        (PCME, "pictures", None, View("pictures", "toy/test"), Features("resnet")),
    ],
)
def test_a_file_reads_what_its_papers_recipe_reads(
    config: Config, corpus: str, split: str | None, view: View, visual: Features, root: str
) -> None:
    assert read_for(config, Setup(root), corpus, split) == (view, visual)


class Harm:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch harmed",)


def test_a_hostile_vocabulary_is_refused_and_not_executed(
    words: dict[str, int], tmp_path: Path, command: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "model.pth", official_state(model_of(PVSE, len(words))))
    for bad in (Harm(), {"word2idx": words, "idx": Harm()}):
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            (tmp_path / "bad.pkl").write_bytes(pickle.dumps(bad, protocol))
            code, out, err = command("model.pth", "--vocabulary", str(tmp_path / "bad.pkl"))
            assert (code, out) == (1, "")
            assert (
                "bad.pkl is no vocabulary in JSON, in a pickle, of a word a line, or of a run: it wants posix.system"
                in err
            )
    assert not (tmp_path / "harmed").exists()


def test_released_ids_are_the_files(words: dict[str, int]) -> None:
    vocabulary, some = ReleasedVocabulary(words), list(words)[7]
    expected = [words[word] for word in ("<start>", some, "<unk>", "<end>")]
    assert vocabulary.encode(f"{some.upper()} zzz").tolist() == expected
    assert vocabulary.encode("").dtype == np.int32


SIZES = {"resnet.resize": 256, "resnet.crop": 224, "pixels.side": 256}


def cnn_of(fronted: WithBackbone) -> dict[str, Tensor]:
    """By the names that the official code saves it with."""
    names = {str(place): name for name, place in PLACES.items()}
    found = [(name.split(".", 2), value) for name, value in fronted.state_dict().items() if name.startswith("trunk.")]
    return {f"img_enc.cnn.{names[place]}.{rest}": value for (_, place, rest), value in found}


def test_pictures_are_seen_by_the_cnn_in_the_file(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, command: Callable[..., Said]
) -> None:
    root = make_pictures(tmp_path_factory.mktemp("pictures"), "grid", **SIZES)
    words = {word: number for number, word in enumerate([*SPECIALS, "a", "red", "blue", "circle", "above", "on"])}
    store, view = open_dataset(root, "pictures").store("resnet"), View("pictures", "train")
    torch.manual_seed(0)
    model = PVSE.build(Inputs(512, len(words), 0))
    heads = official_state(model)
    fronted = attach_backbone(model, store).eval()
    with torch.no_grad():  # as training would
        for name, values in fronted.state_dict().items():
            if name.startswith("trunk.7") and "running_mean" in name:
                values.add_(torch.randn(values.shape))
    saved(tmp_path / "model.pth", heads | cnn_of(fronted))
    reader = Reader(Examples.of(find(root, "records")[0], view, store, ByTheFile(words)), store)
    seen = picture_reader(reader, open_dataset(root, "pictures").store("pixels"), Pixels("centre", flip=False))
    scores = measure(fronted, seen, Silence())["all"]
    expected = scores.rsum, scores.visual_to_text["Mean R"], scores.text_to_visual["Mean R"]
    given = (*vocabulary_at(tmp_path / "coco_vocab.json", words), "--split", "train", "--root", root, "--json")
    code, out, err = command("model.pth", *given, "--set", "visual.stage=pixels")
    assert code == 0, err
    report = json.loads(out)
    assert (told(report), report["weights"]) == (expected, "the resnet18 in the file")
    assert report["features"].startswith("pixels/")
    code, out, err = command("model.pth", *given)
    assert code == 0, err
    assert told(json.loads(out)) != expected
    assert "in place of the CNN in the file, which --set visual.stage=pixels takes" in json.loads(out)["weights"]
    clips = official_state(model_of(replace(PVSE, visual="video"), len(words)))
    saved(tmp_path / "model.pth", clips)
    code, _, err = command("model.pth", *given, "--set", "visual.stage=pixels")
    assert (code, "reads frames of clips, not pixels: --set visual.stage=frames" in err) == (1, True)
    saved(tmp_path / "model.pth", heads)
    code, _, err = command("model.pth", *given, "--set", "visual.stage=pixels")
    assert (code, "model.pth (PVSE) has no ResNet to look at pictures" in err) == (1, True)
    name = "img_enc.cnn.layer4.1.conv2.weight"
    saved(tmp_path / "model.pth", heads | {key: value for key, value in cnn_of(fronted).items() if key != name})
    code, _, err = command("model.pth", *given, "--set", "visual.stage=pixels")
    assert (code, "model.pth (PVSE) has a CNN that is no whole resnet18: " in err) == (1, True)
