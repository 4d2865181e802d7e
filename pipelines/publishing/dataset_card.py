"""Writes the card of a publication: one template, and what the corpus' own card says in it.

datasets_cards/_template.md has `$name` where a fact stands, and `<!-- name -->` marks around what is left out where the
fact is empty. datasets_cards/<corpus>.md has, between its first lines `---`, OWN_FIELDS and then those of the Hugging
Face hub, the last of which is `tags`; then what the corpus is, and SECTIONS.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from pipelines.publishing.hub_tables import DatasetConfig
from pipelines.publishing.publication import Publication, lock_name, made_from, may, may_column, withheld
from xmodal import corpora
from xmodal.corpora import Corpus, Part
from xmodal.errors import UserError
from xmodal.features.store import GROUP
from xmodal.raw.archives import archive_of
from xmodal.records.tables import CAPTIONS_OF_PAPERS
from xmodal.root.outputs import Output
from xmodal.root.sealed_sets import read_lock

CARDS = Path(__file__).parents[2] / "datasets_cards"  # in a checkout and in an installed wheel
OWN_FIELDS = ("licence", "item", "texts")  # CORPUS.licence to the letter; what a row is; what captions are called
PARTS: dict[Part, str] = {"annotations": "Captions", "media": "Media"}  # sections on what is there
ELSEWHERE = {part: f"{name} elsewhere" for part, name in PARTS.items()}  # and on what is withheld
SECTIONS = ("Splits", "Columns", *PARTS.values(), *ELSEWHERE.values(), "Sources", "Licence", "Citation")
WEIGHTS = re.compile("weights|vectors|detector")  # in names of settings
SIZES = ((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"), (10**7, "1M<n<10M"))


@dataclass(frozen=True)
class Card:
    """A corpus' own card; `$name`, `$homepage` and `$licence` in it are those of CORPUS."""

    fields: Mapping[str, str]
    hub: str  # YAML
    about: str
    sections: Mapping[str, str]


def read_card(corpus: Corpus) -> Card:
    """Reads a corpus' card; refuses one that lacks something or is for another licence."""
    path = CARDS / f"{corpus.card or corpus.name}.md"
    if not path.is_file() and corpus.name in corpora.names():
        raise UserError(f"{corpus.name} has no card: write {path}, like those beside it")
    card = _parse(path if path.is_file() else CARDS / "_general.md", corpus)
    if card.fields.get("licence", corpus.licence) != corpus.licence:
        said = f"{card.fields['licence']!r}, and CORPUS.licence is {corpus.licence!r}"
        raise UserError(f"{path} is the card of a corpus whose licence is {said}: correct the one that is wrong")
    return card


def _parse(path: Path, corpus: Corpus) -> Card:
    said = {"name": corpus.name, "homepage": corpus.homepage, "licence": corpus.licence}
    parts = Template(path.read_text("utf-8")).safe_substitute(said).split("---\n", 2)
    if len(parts) != 3 or parts[0]:
        raise UserError(f"{path} does not begin with fields between two lines of ---")
    lines = parts[1].splitlines(keepends=True)
    own = [line for line in lines if line.partition(":")[0] in OWN_FIELDS]
    fields = {name: value.strip() for name, _, value in (line.partition(":") for line in own)}
    hub = "".join(line for line in lines if line not in own)
    about, *rest = map(str.strip, re.split(r"^## (.+)\n", parts[2], flags=re.MULTILINE))
    sections = dict(zip(rest[::2], rest[1::2], strict=True))
    lacking = [name for name in ("item", "texts") if not fields.get(name)]
    lacking += [name for name in ("pretty_name", "license", "tags") if not re.search(rf"^{name}:", hub, re.MULTILINE)]
    lacking += [f"## {name}" for name in ("Columns", "Licence") if not sections.get(name)]
    if unknown := sections.keys() - {*SECTIONS}:
        raise UserError(f"{path} has a section {min(unknown)!r}; there are: {', '.join(SECTIONS)}")
    if lacking or not about:
        raise UserError(f"{path} lacks {', '.join(lacking) or 'a paragraph on what the corpus is'}")
    return Card(fields, hub.strip(), about, sections)


def fill_card(card: Card, made: Publication, configs: list[DatasetConfig]) -> str:
    corpus, counts, features = made.corpus, made.records.totals["counts"], made.features
    files = configs[0].files if configs else {}
    about = [{"config_name": c.name, "default": c is configs[0], "data_files": c.data_files} for c in configs]
    hub, sections = card.hub, _sections(card, corpus)
    if not may(corpus, "annotations", "all"):
        hub = re.sub(r"^license: .*$", "license: other", hub, flags=re.MULTILINE)
    columns, note = _columns(sections["Columns"], corpus)
    array, is_ragged = _first_array(features[0]) if features else ("", False)
    locks = (
        f"- {part}: `{output.folder}`, {lock_name(part)} has sha256 `{output.config['lock_sha256']}`"
        for part, output in made.sealed.items()
    )
    facts: dict[str, object] = {f"about_{name.lower().replace(' ', '_')}": text for name, text in sections.items()}
    facts |= {
        **card.fields,
        "hub": hub,
        "title": re.findall(r"^pretty_name: \"?(.*?)\"?$", hub, re.MULTILINE)[0],
        "about": card.about,
        "configs": _yaml(about),
        "dataset_info": _yaml([config.info for config in configs]),
        "size_category": next((name for limit, name in SIZES if counts["items"] < limit), "n>10M"),
        "sample": corpus.sample,
        "differs": ", ".join(_not_the_publishers(made)),
        "withheld": ", ".join(f"{part} ({release})" for part, release in withheld(corpus).items()),
        "config": configs[0].name if configs else "",
        "split": next((split for split in ("train", *files) if split in files), ""),
        "splits": "\n".join(_split_lines(configs, counts)),
        "columns": "\n".join(columns),
        "about_columns": f" {note}" if note else "",
        "features": "\n".join(f"- `{output.folder}`: {store_settings(output)}" for output in features),
        "store": features[0].folder if features else "",
        "store_config": configs[-len(features)].name if features else "",
        "array": array,
        "ragged": is_ragged,
        "dense": not is_ragged,
        "provenance": "\n".join([f"- records: `{made.records.folder}`", *locks]),
    }
    return _filled(facts)


def _sections(card: Card, corpus: Corpus) -> dict[str, str]:
    """All sections; empty are those that the card lacks, and of what is there or elsewhere the one that is wrong."""
    sections = {**dict.fromkeys(SECTIONS, ""), **card.sections}
    for part in PARTS:
        sections[(ELSEWHERE if may(corpus, part, "all") else PARTS)[part]] = ""
    return sections


def _columns(section: str, corpus: Corpus) -> tuple[list[str], str]:
    """The lines on columns that may be published, and what is said beside them."""
    lines = section.splitlines()
    columns = ((re.match(r"\| `(\w+)`", line), line) for line in lines if may(corpus, "annotations", "ids"))
    note = " ".join(line for line in lines if not line.startswith("|")).strip()
    return [line for found, line in columns if found and may_column(corpus, found[1])], note


def _filled(facts: Mapping[str, object]) -> str:
    section = re.compile(r"<!-- (\w+) -->\n(.*?)<!-- /\1 -->\n", re.DOTALL)

    def kept(found: re.Match[str]) -> str:
        return section.sub(kept, found[2]) if facts[found[1]] else ""

    return Template(section.sub(kept, (CARDS / "_template.md").read_text("utf-8"))).substitute(facts)


def _first_array(store: Output) -> tuple[str, bool]:
    """The array with the shortest name, and whether it is ragged."""
    arrays = [name.removesuffix("/zarr.json") for name in store.files if name.endswith("/zarr.json")]
    name = next(array for array in sorted(arrays, key=len) if not array.endswith("_extents"))
    return name, f"{name}_extents" in arrays


def _split_lines(configs: list[DatasetConfig], counts: Mapping[str, int]) -> Iterator[str]:
    """Rows of a Markdown table; the last column counts captions among an item's first five."""
    for config in configs:
        for split in config.info["splits"]:
            named = config.named.get(split["name"])
            captions = [counts.get(f"{kind}:{named}") for kind in ("captions", f"captions[:{CAPTIONS_OF_PAPERS}]")]
            numbers = ("" if count is None else f"{count:,}" for count in (split["num_examples"], *captions))
            yield f"| `{config.name}` | `{split['name']}` | {' | '.join(numbers)} |"


def store_settings(output: Output) -> str:
    """Settings of a store, and the weights of it and of all that it was computed from."""
    plain = {name: value for name, value in output.config.items() if name != "_type" and not isinstance(value, dict)}
    provenance = json.loads(output.read(GROUP)).get("attributes", {}).get("provenance", {})
    if digest := provenance.get("weights_sha256"):
        plain["weights_sha256"] = digest
    said = [", ".join(f"{name} {value}" for name, value in plain.items())]
    for before in made_from(output):
        weights = ((name, value) for name, value in before.config.items() if WEIGHTS.search(name) and value)
        said += [f"{name} {value} of `{before.folder}`" for name, value in weights]
    return "; ".join(said)


def _not_the_publishers(made: Publication) -> Iterator[str]:
    """The files whose bytes are not those that the corpus of this name pins."""
    corpus = corpora.load(made.corpus.name) if made.corpus.name in corpora.names() else made.corpus
    published = {source.path: source.sha256 for source in corpus.sources if source.sha256}
    for output in made.sealed.values():
        for locked in read_lock(output):
            if published.get(archive_of(locked.path), locked.sha256) != locked.sha256:
                yield f"`{locked.path}`"


def _yaml(value: Any, indent: str = "") -> str:
    """Block style with quoted texts, which YAML cannot take for something else."""
    deeper = f"{indent}  "
    if isinstance(value, dict):
        return "".join(f"\n{indent}{key}:{_yaml(each, deeper)}" for key, each in value.items())
    if isinstance(value, list):
        return "".join(f"\n{indent}- {_yaml(each, deeper).lstrip()}" for each in value) or " []"
    return f" {json.dumps(value)}"
