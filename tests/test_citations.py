"""What code and documents cite is in the repository: files, anchors, and the origin of every reference value."""

import io
import re
import shlex
import tokenize
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

from pipelines import commands, stages
from pipelines.engine.typed_settings import describe
from pipelines.papers.recipe_runs import configs_of, recipes

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "tests/reference"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", REFERENCE / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CITING = sorted(
    path
    for folder in ("xmodal", "pipelines", "tests", "datasets_cards")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".toml", ".md"} and path not in PAGES
)

CITED_PAGE = re.compile(r"\bdocs/([\w-]+\.md)(?:#([\w-]+))?")
CITED_VALUES = re.compile(r"\btests/reference/([\w/]+\.(?:npz|json|gif|mp4|webm|md))")
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
ABSENT_PAGE = re.compile(
    r"(?i)\b(the|of) spec(ification)?\b|(?<!\w)[(]spec\b|\bspec(ification)?,? (models|corpora|section|\d)"
)


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page: explicit ones, and those that GitHub makes of headings."""
    text = page.read_text()
    headings = re.findall(r"^#+ (.+)$", CODE.sub(lambda code: code[0].strip("`"), text), re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return frozenset(slugs | set(re.findall(r'<a id="([^"]+)">', text)))


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a document, or of a module's comments and strings, with their numbers."""
    if path.suffix != ".py":
        yield from enumerate(path.read_text().splitlines(), 1)
        return
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type in kinds:
            yield from enumerate(token.string.splitlines(), token.start[0])


def missing(page: Path, anchor: str | None) -> bool:
    return not page.exists() or (bool(anchor) and anchor not in anchors(page))


@pytest.mark.parametrize("path", [*CITING, *PAGES], ids=lambda path: str(path.relative_to(ROOT)))
def test_citations_lead_somewhere(path: Path) -> None:
    broken = []
    for number, line in prose(path):
        pages = [found for found in CITED_PAGE.finditer(line) if missing(ROOT / "docs" / found[1], found[2])]
        values = [found for found in CITED_VALUES.finditer(line) if not (REFERENCE / found[1]).exists()]
        absent = [found for found in [ABSENT_PAGE.search(line)] if found]
        broken += [f"line {number}: {found[0]}" for found in (*pages, *values, *absent)]
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = (link for link in LINK.findall(CODE.sub("", page.read_text())) if "://" not in link)
    parts = ((link, *link.partition("#")[::2]) for link in links)
    assert not [link for link, file, anchor in parts if missing(page.parent / file if file else page, anchor)]


def test_commands_of_the_readme_have_what_they_require(capsys: pytest.CaptureFixture[str]) -> None:
    text, broken = (ROOT / "README.md").read_text(), []
    told = re.findall(r"^\.venv/bin/xmodal ([a-z][^#\n]*)", text, re.MULTILINE)  # in blocks
    told += re.findall(r"`xmodal ([a-z]\w*\s[^`]+)`", text)  # one without arguments only names itself
    assert len(told) > 30
    for words in map(shlex.split, told):
        try:
            commands.parser().parse_args(words)
        except SystemExit as refused:
            if refused.code:
                broken.append((words, capsys.readouterr().err.splitlines()[-1]))
    assert not broken


@cache
def settings() -> frozenset[str]:
    """Every setting of a stage, a recipe or the detector's training, as --set takes it."""
    kinds = {kind.name: kind.config() for kind in stages.all()}
    every = [*kinds.items(), *(one for recipe in recipes().values() for one in configs_of(recipe).items())]
    names = {(name, tuple(one) if isinstance(one, dict) else type(one)): one for name, one in every}
    return frozenset(row["name"] for (name, _), one in names.items() for row in describe(one, name))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_settings_that_pages_name_exist(page: Path) -> None:
    known = settings()
    heads = {name.rpartition(".")[0] for name in known}
    text = " ".join(page.read_text().split())
    told = set(re.findall(r"--set ([a-z]\w*\.[\w.]+)=", text))
    told |= {name for name in re.findall(r"`([a-z]\w*\.[\w.]+)(?:=[^`]*)?`", text) if name.rpartition(".")[0] in heads}
    assert told <= known


def test_pages_that_are_cited_have_anchors() -> None:
    """The test above would be content with a page whose anchors nobody can find."""
    assert {"pvse-losses", "frame-sampling", "recall"} <= anchors(ROOT / "docs/models.md")
    assert {"tokenizers", "coco"} <= anchors(ROOT / "docs/corpora.md")


def test_every_reference_value_says_how_it_was_computed() -> None:
    about = (REFERENCE / "README.md").read_text()
    rows = re.findall(r"^\| (`[^|]+`) \|", about, re.MULTILINE)
    patterns = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    files = [path.name for path in REFERENCE.rglob("*") if path.suffix in {".npz", ".gif", ".mp4", ".webm"}]
    assert [name for name in files if not any(fnmatch(name, pattern) for pattern in patterns)] == []
    assert [pattern for pattern in patterns if not any(fnmatch(name, pattern) for name in files)] == []


def test_readers_of_reference_values_are_tests_that_exist() -> None:
    about = (REFERENCE / "README.md").read_text()
    readers = set(re.findall(r"\btest_\w+", about))
    assert "to come" not in about
    assert readers <= {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
