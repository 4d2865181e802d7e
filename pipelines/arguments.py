"""What may be said to the `xmodal` command: its commands, their flags and examples."""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from pipelines.commands import check

EPILOG = """examples:
  xmodal corpora                                        what can be built
  xmodal plan coco --root data                          what it would take
  xmodal build coco/records --root data                 download, check and parse the captions
  xmodal build coco --root s3://bucket/xmodal --raw ~/Downloads
  xmodal build coco/resnet --root data --set resnet.network=resnet50 --set resnet.weights=IMAGENET1K_V2
  xmodal train vsepp --root data --run runs/vsepp; xmodal evaluate runs/vsepp --root data
  xmodal reproduce pvse; xmodal reproduce "pvse table 2" --root data --runs runs
  xmodal look runs/pvse --root data --attention maps    where it looks; --probes: what makes a PCME unsure
  xmodal build tgif/frames --root data; xmodal look tgif --root data --frames sheets    what its clips show
  xmodal evaluate --scores sims.npy --corpus coco --root data    anybody's similarity matrix
  xmodal evaluate pcme.pth --vocabulary coco_vocab.pkl --root data    weights that a paper's authors released
  xmodal build coco/fingerprints --root data; xmodal leakage coco --root data --clean karpathy/test
  xmodal stats coco --root data                         what it consists of, beside what the papers print of it
  xmodal publish coco --root data --out coco-captions
  xmodal import dev_ims.npy --root data --name scan36; xmodal export data/scan36/IDENTITY features.h5
  xmodal status --root data; xmodal retry coco --root data; xmodal retry tgif/frames --root data --class timeout
  xmodal build mylist.parquet --url url --caption caption --root data    your own data; from then on named mylist
  xmodal build pictures --captions captions.csv --url file --splits train=0.8,val=0.1,test=0.1 --root data
  xmodal build hf://org/name --url image --caption text --root data
  xmodal train vsepp --corpus mylist --root data; xmodal publish mylist --root data --out mine
  xmodal build mine.py --root data --serial             a corpus that a Python file defines, without Ray

A command that was stopped, by whatever, is continued by running it again."""

REPRODUCE = """examples:
  xmodal reproduce                                      every experiment, one a line
  xmodal reproduce pvse                                 those of a paper, with their rows
  xmodal reproduce pvse table 2                         one, with all that is printed and the commands to run it
  xmodal reproduce dualpath:VIII --json
  xmodal reproduce pvse-2 --root data --runs runs --vectors glove.840B.300d.txt
                                       trains and evaluates what is ready of it; finished runs stay"""

EVALUATE = """examples:
  xmodal evaluate runs/vsepp --root data                a run, on the test split of its corpus
  xmodal evaluate runs/pcme --root data --split karpathy/val --distance elk --json
  xmodal evaluate pcme.pth --vocabulary coco_vocab.pkl --root data --corpus coco
  xmodal evaluate pcme.pth --vocabulary coco_vocab.pkl --root data --set visual.stage=pixels     by the CNN in the file
  xmodal evaluate tgif.pth --vocabulary tgif_vocab.pkl --root data --corpus tgif --set visual.frames=8
  xmodal evaluate --scores sims.npy --corpus coco --root data

A file of PVSE, PCME or VSE++ is evaluated on features of a corpus, read as that paper's recipe for the corpus reads:
7 x 7 x 2048 of its ResNet; VSE++ takes their mean too. Training has moved the CNN of most files: authors' numbers need
visual.stage=pixels, which looks at the pictures by the CNN in the file."""


VECTORS = """examples:
  xmodal vectors glove.840B.300d.zip                    which format it has, and how wide it is
  xmodal vectors glove.840B.300d.zip --words runs/pvse/vocabulary.txt       which words have a vector
  xmodal vectors GoogleNews-vectors-negative300.bin.gz --index news.index   from then on --vectors news.index
  xmodal vectors coco --root data --split karpathy/train --train coco.bin   word2vec of the captions' own words

Formats, known by what is in a file: GloVe text, word2vec text and binary, as they are, in gzip, or alone in a zip."""


def known_arguments(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="xmodal", description=description, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command = partial(_command, parser.add_subparsers(dest="command", metavar="COMMAND"))
    command("corpora", "every corpus: licence, what is built under a root", root=False)
    for name, text in (
        ("plan", "what a build would do, before anything runs"),
        ("build", "bring stages up to date; continues where it stopped"),
    ):
        building = command(name, text, targets="CORPUS[/STAGE]")
        _circumstances(building)
        building.add_argument(
            "--sample", action="store_true", help="a part of a corpus' files, from --raw; it is named CORPUS-sample"
        )
        _own(building)
    retry = command(
        "retry", "try failed files again, or of CORPUS/frames clips, and nothing else", targets="CORPUS[/frames]"
    )
    retry.add_argument("--class", dest="failure", help="only failures of this class, such as timeout or http_404")
    _circumstances(retry)
    command("seal", "a new sealed set from what the ledger says now", targets="CORPUS")
    command("status", "progress, and failures by class")
    verify = command("verify", "read every byte and compare it with the records")
    verify.add_argument("--forget", action="store_true", help="have damaged parts made again by the next build")
    _training(command("train", "train a recipe from cached features; goes on where it stopped"))
    _evaluating(command("evaluate", "every metric of a run, released weights or a similarity matrix on a split"))
    _looking(command("look", "where a run's model looks, as pictures; what makes it unsure; the frames of clips"))
    _describing(command("stats", "descriptive tables of a corpus as parsed, beside what the papers print of it"))
    _reproducing(
        command("reproduce", "every table and figure of the five papers: what it takes, and its state", root=False)
    )
    _leaking(command("leakage", "media that lie in several splits, or in several corpora, and nearly so"))
    publish = command("publish", "a Hugging Face dataset in a local folder", targets="CORPUS")
    publish.add_argument("--out", type=_local, required=True, help="the folder; one of an earlier publish is replaced")
    checking = command("check", "a corpus or a model of yours against the contract: what is missing", root=None)
    check.flags(checking)
    _importing(command("import", "features that you have already, as the output of a stage; goes on where it stopped"))
    _exporting(command("export", "features as .npy, .h5, webdataset .tar, or an npz an item", root=None))
    _vectoring(
        command("vectors", "word vectors: which words a file has, an index of it, or ones trained here", root=False)
    )
    demo = command("demo", "everything, on small generated worlds in the files of COCO, TGIF and MRW", root=False)
    demo.add_argument("--items", type=int, default=1000, help="scenes in COCO's world (default: 1000)")
    _circumstances(demo)
    command("doctor", "what is missing on this machine and how to get it", root=False)
    return parser


def _command(
    commands: Any, name: str, text: str, *, targets: str = "", root: bool | None = True
) -> argparse.ArgumentParser:
    """`root` is asked for (True), may be given (False), or is nothing to this command (None)."""
    sub: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    if targets:
        what = "a corpus, a list or folder of yours, mine.py; /STAGE for one"
        sub.add_argument("targets", nargs="+", metavar=targets, help=what)
    sub.set_defaults(root=None)
    if root is not None:
        sub.add_argument("--root", required=root, help="where outputs are: a folder, or a URL, s3://bucket/run")
    sub.add_argument("--json", action="store_true", help="the result as JSON on stdout")
    return sub


def _own(parser: argparse.ArgumentParser) -> None:
    own = parser.add_argument_group(
        "your own data",
        "A list (.parquet, .csv, .tsv, .jsonl), a folder with one, or a Hugging Face dataset (a folder, or "
        "hf://org/name) in place of a corpus. What no flag says is as this root read it last.",
    )
    own.add_argument("--url", metavar="COLUMN", help="addresses, paths beside the list, or pictures (default: url)")
    own.add_argument("--caption", metavar="COLUMN", help="a text or a list of texts (default: caption)")
    own.add_argument(
        "--id", metavar="COLUMN", help="'' is none (default: made from the address, the path, the picture)"
    )
    own.add_argument(
        "--split", metavar="COLUMN", help="the split of each row: train, val, test or a name; empty is none"
    )
    own.add_argument("--splits", metavar="NAME=SHARE,…", help="by hash of the id (train=0.9,val=0.05,test=0.05)")
    own.add_argument("--captions", metavar="FILE", help="the list of a folder, beside or in it, if not captions.*")
    own.add_argument(
        "--kind",
        choices=("image", "clip", ""),
        metavar="image|clip",
        help="what all items are, where addresses and names do not tell; '' is by name (default: by its ending)",
    )
    own.add_argument("--name", help="the name of the corpus (default: that of the list or folder)")


def _training(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", help="such as vsepp; a wrong name lists them all; or mine.py, mine.py:NAME of yours")
    parser.add_argument("--corpus", help="another one than the recipe's, in its splits of the same name")
    parser.add_argument("--run", type=_local, help="the folder of the run (default: runs/RECIPE)")
    parser.add_argument("--records", help="identity of the records, where the root has several")
    parser.add_argument("--features", help="identity of the features, where the root has several")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, cuda:1")
    parser.add_argument("--pixels", help="identity of the resized pictures, where the root has several")
    parser.add_argument(
        "--vectors", type=_local, metavar="FILE", help="the word vectors that the recipe names, or an index"
    )
    parser.add_argument("--weights", type=_local, metavar="FILE", help="of the features' network, to train it further")
    parser.add_argument("--workers", type=_count, default=0, help="processes that train together, by Ray Train")
    parser.add_argument("--address", help="the Ray cluster of --workers (auto, or host:port); default: this machine")
    parser.add_argument("--tensorboard", action="store_true", help="write RUN/tensorboard beside RUN/log.jsonl")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="epochs=3, model.width=512")


def _evaluating(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EVALUATE
    parser.add_argument(
        "run",
        type=_local,
        nargs="?",
        metavar="RUN|FILE",
        help="the folder of a run, or its best.pt; weights in a file of PVSE, PCME or VSE++; or use --scores",
    )
    parser.add_argument(
        "--vocabulary", type=_local, metavar="WORDS", help="of FILE: the .pkl or .json released with it, or of a run"
    )
    parser.add_argument("--records", help="identity of FILE's records, where the root has several")
    parser.add_argument("--features", help="identity of FILE's features, where the root has several")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="of FILE: visual.stage=clips, visual.frames=8"
    )
    parser.add_argument("--split", help="such as karpathy/val (default: the test split)")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, cuda:1")
    parser.add_argument("--distance", help="another score of the same weights: elk, js, wasserstein, … (PCME)")
    parser.add_argument("--eccv", type=_local, metavar="DIR", help="a folder with ECCV-Caption's two JSON files")
    parser.add_argument("--latex", action="store_true", help="the result as LaTeX tables on stdout")
    parser.add_argument(
        "--scores",
        type=_local,
        metavar="FILE",
        help="a .npy matrix of similarities, greater is closer: rows are the split's items, columns the captions of "
        "the first item, of the second, …, as --write-ids lists them; or the first captions of each, 5 for example",
    )
    parser.add_argument("--corpus", help="the corpus of --scores, and of FILE (default there: coco)")
    parser.add_argument(
        "--ids", metavar="PREFIX", help="rows and columns as PREFIX.items.txt and PREFIX.captions.txt say"
    )
    parser.add_argument(
        "--write-ids", metavar="PREFIX", help="writes these two files for --corpus, and does nothing else"
    )


def _looking(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=_local, metavar="RUN|CORPUS", help="the folder of a run; with --frames a corpus")
    parser.add_argument("--split", help="such as karpathy/val (default: the test split; of --frames all clips)")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, cuda:1")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--attention", type=_local, metavar="DIR", help="a PNG an item: every map of attention over it")
    what.add_argument("--frames", type=_local, metavar="DIR", help="a PNG a clip: its frames, and when each begins")
    what.add_argument(
        "--probes", action="store_true", help="uncertainty by what is taken away, and recall by it (PCME)"
    )
    some = parser.add_mutually_exclusive_group()
    some.add_argument("--items", nargs="+", default=[], metavar="ID", help="these items alone")
    some.add_argument("--first", type=_count, metavar="N", help="the first items (default: 8)")
    parser.add_argument("--features", help="of --frames: identity of the frames, where the root has several")


def _leaking(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("targets", nargs="+", metavar="CORPUS", help="corpora whose fingerprints are built")
    parser.add_argument(
        "--distance", type=_count, metavar="N", help="near pictures differ in at most so many bits of 64 (default: 6)"
    )
    parser.add_argument(
        "--clean",
        metavar="SPLIT",
        help="of the first corpus, karpathy/test: written beside it without what lies in training splits",
    )
    parser.add_argument(
        "--against",
        nargs="+",
        default=[],
        metavar="SPLIT",
        help="what --clean compares with (default: the training splits of its author and of the other corpora)",
    )


def _describing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("corpus", metavar="CORPUS", help="a corpus or a file mine.py, with records under the root")
    parser.add_argument("--records", help="identity of the records, where the root has several")
    parser.add_argument("--latex", action="store_true", help="the splits as a LaTeX table on stdout")


def _importing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=_local, help="x.npy, x.h5, x.tar, a Zarr array, or a folder of .npz, .npy, .tar")
    parser.add_argument("--name", required=True, help="the stage that it becomes, as recipes name it (visual.stage)")
    parser.add_argument("--ids", type=_local, help="a file with one id a line (default: x_ids.txt or ids.txt beside)")
    parser.add_argument("--key", help="which array of an .h5 or of every .npz; of a tar, the KEY of ID.KEY.npy")
    _workers(parser)


def _exporting(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("features", help="the directory of the features: ROOT/STAGE/IDENTITY")
    parser.add_argument("out", type=_local, help="x.npy, x.h5 or x.tar; any other name is a folder of .npz")
    parser.add_argument("--array", help="which array of the features (default: the first)")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--ids", type=_local, help="a file with one id a line: these alone, in this order")
    chosen.add_argument("--split", help="such as karpathy/test: its items; x_ims.npy gets captions in x_caps.txt")
    parser.add_argument("--corpus", help="of the split, where the root has several")


def _vectoring(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = VECTORS
    parser.add_argument("file", metavar="FILE|CORPUS", help="a file of word vectors or an index; with --train a corpus")
    parser.add_argument(
        "--words", type=_local, metavar="WORDS", help="a vocabulary: RUN/vocabulary.txt, a released one"
    )
    parser.add_argument("--index", type=_local, metavar="OUT", help="writes an index, of which words are read at once")
    parser.add_argument("--train", type=_local, metavar="OUT", help="writes word2vec's binary, trained on captions")
    parser.add_argument("--split", help="of --train: whose captions, such as karpathy/train")
    parser.add_argument("--tokenizer", help="of --train (default: nltk)")
    parser.add_argument("--cleaning", help="of --train, such as mrw (default: none)")


def _reproducing(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = REPRODUCE
    parser.add_argument("names", nargs="*", metavar="PAPER|TABLE", help="a paper, or one of its tables (default: all)")
    parser.add_argument("--runs", type=_local, default=Path("runs"), help="the folder of all runs (default: runs)")
    parser.add_argument("--records", help="identity of the records, where the root has several")
    parser.add_argument("--features", help="identity of the features, where the root has several")
    parser.add_argument("--pixels", help="identity of the resized pictures, where the root has several")
    parser.add_argument(
        "--vectors", type=_local, metavar="FILE", help="the word vectors that its recipes name, or an index"
    )
    parser.add_argument("--weights", type=_local, metavar="FILE", help="of the features' network, to train it further")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, cuda:1")


def _local(text: str) -> Path:
    if "://" in text:
        raise argparse.ArgumentTypeError(f"a path on this machine, not {text}")
    return Path(text).expanduser()


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"a whole number, not {text}")
    return int(text)


def _circumstances(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--raw", type=_local, help="a folder with files you have already, also in archives; linked, if possible"
    )
    _workers(parser)
    parser.add_argument("--weights", type=_local, help="a state_dict for the network, in place of its named weights")
    parser.add_argument(
        "--vectors", type=_local, metavar="FILE", help="the word vectors of codes of sentences, or an index"
    )


def _workers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--address", help="a Ray cluster to run on (auto, or host:port); default: this machine")
    parser.add_argument("--workers", type=_count, default=0, help="at most so many; default: all there is room for")
    parser.add_argument("--serial", action="store_true", help="one after the other in this process, without Ray")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting; changes identity")
