"""Shows which words a file of word vectors has, makes an index of it, or trains vectors on captions.

examples:
  xmodal vectors glove.840B.300d.zip                    which format it has, and how wide it is
  xmodal vectors glove.840B.300d.zip --words runs/pvse/vocabulary.txt    which words have a vector
  xmodal vectors glove.840B.300d.zip --words words.txt                   of a word a line
  xmodal vectors GoogleNews-vectors-negative300.bin.gz --index news.index    from then on --vectors news.index
  xmodal vectors coco --root data --split karpathy/train --train coco.bin    word2vec of the captions' own words

Formats, known by what is in a file: GloVe text, word2vec text and binary, as they are, in gzip, or alone in a zip.
"""

from dataclasses import asdict
from pathlib import Path

from pipelines.commands import Args, Lines, Parser, Result, _flags
from xmodal.errors import UserError


def flags(parser: Parser) -> None:
    add = parser.add_argument
    add("file", metavar="FILE|CORPUS", help="a file of word vectors or an index; with --train a corpus")
    add(
        "--words",
        type=_flags.path,
        metavar="WORDS",
        help="a vocabulary: RUN/vocabulary.txt, a released one, or a word a line",
    )
    add("--index", type=_flags.path, metavar="OUT", help="writes an index, of which words are read at once")
    add("--train", type=_flags.path, metavar="OUT", help="writes word2vec's binary, trained on captions")
    _flags.root(parser, required=False)
    add("--split", help="of --train: whose captions, such as karpathy/train")
    add("--tokenizer", help="of --train (default: nltk)")
    add("--cleaning", help="of --train, such as mrw (default: none)")
    _flags.quiet(parser)


def run(args: Args) -> Result:
    if args.train:
        if not (args.root and args.split) or args.words or args.index:
            raise UserError("--train needs --root and --split; --words and --index are for the file that it wrote")
        return _train(args)
    if args.root or args.split or args.tokenizer or args.cleaning:
        raise UserError("--root, --split, --tokenizer and --cleaning belong to --train")
    return _describe(args)


def text(result: Result) -> Lines:
    from xmodal.text.word_vectors import Coverage

    file, width = result["file"], f"{result['width']} numbers each"
    if "captions" in result:
        yield f"{result['words']:,} words of {result['captions']:,} captions, {width}, in {file}"
        return
    words = "" if result["words"] is None else f"{result['words']:,} words, "
    yield f"{file}: {result['format']}, {words}{width}"
    if "coverage" in result:
        yield str(Coverage(**result["coverage"]))
    if "index" in result:
        yield f"its index is {result['index']}: give that as --vectors"


def _describe(args: Args) -> Result:
    from xmodal.progress import MB, in_megabytes
    from xmodal.text.vector_files import VectorFile
    from xmodal.text.vector_index import write_index
    from xmodal.text.vocabularies import SPECIALS, load_vocabulary
    from xmodal.text.word_vectors import Coverage, open_vectors, read_vectors

    file, progress = Path(args.file), _flags.progress(args)
    words = [word for word in load_vocabulary(args.words).words if word not in SPECIALS] if args.words else None
    source, size = open_vectors(file), file.stat().st_size // MB
    about: Result = {"file": str(file), "format": source.kind, "width": source.width, "words": source.count}
    if args.index:
        if not isinstance(source, VectorFile):
            raise UserError(f"{file} is an index already")
        with progress.over("convert", size, unit="MB") as tick:
            made = write_index(source, args.index, in_megabytes(tick))
        about |= {"index": str(args.index), "words": made.count}
    if words:
        with progress.over("read", size, unit="MB") as tick:
            vectors = read_vectors(args.index or file, words, tick=in_megabytes(tick))
        about |= {"coverage": asdict(Coverage.of(words, vectors))}
    return about


def _train(args: Args) -> Result:
    from xmodal.recipes import View
    from xmodal.records.views import caption_texts
    from xmodal.root.files import check_free
    from xmodal.root.selection import find_output
    from xmodal.text.tokenizers import tokenizer
    from xmodal.text.word2vec import EPOCHS, train_word2vec, write_word2vec

    tokens, cleaning, progress = args.tokenizer or "nltk", args.cleaning or "none", _flags.progress(args)
    check_free(args.train)
    try:
        split_words = tokenizer(tokens, cleaning)
    except ValueError as error:
        raise UserError(f"--tokenizer {tokens} --cleaning {cleaning}: {error}") from error
    records = find_output(args.root, "records", corpus=_flags.corpus_name(args.file, args))
    texts = [*map(split_words, caption_texts(records, View(args.file, args.split)))]
    progress.say(f"{args.file}: {len(texts):,} captions of {args.split}")
    with progress.over("train", EPOCHS, unit="epochs") as tick:
        words, vectors = train_word2vec(texts, tick=tick)
    write_word2vec(args.train, words, vectors)
    return {"file": str(args.train), "captions": len(texts), "words": len(words), "width": vectors.shape[1]}
