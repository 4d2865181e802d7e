"""The ledger and its seals: what attempts add up to, what is tried again, and what a sealed set stands for."""

import json
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path

import pytest

from pipelines.engine.build_options import BuildOptions
from pipelines.engine.progress_line import ProgressLine
from pipelines.fetching.ledger import FetchAttempt, Ledger, State
from pipelines.fetching.sealing import FileSet
from pipelines.upkeep.corpus_build import CorpusBuild
from pipelines.upkeep.inspection import forget, verify
from tests.conftest import tree_digest
from tests.fetching.test_fetch import scripted
from tests.misbehaving import Behaviour, Server, serve
from xmodal import corpora
from xmodal.corpora import Corpus, Source
from xmodal.errors import UserError
from xmodal.raw.raw_files import Raw, raw_of
from xmodal.records.tables import Row
from xmodal.root.outputs import Output
from xmodal.root.sealed_sets import LOCK, read_lock
from xmodal.root.storage import open_storage

PICTURES = [f"p{number:03d}.jpg" for number in range(8)]
FIXTURE = Path(__file__).parents[1] / "fixtures/pictures.py"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.fetching.fetcher.PAUSES_SECONDS", (0.0, 0.0, 0.0))


@pytest.fixture
def site(tmp_path: Path) -> BuildOptions:
    return BuildOptions(open_storage(str(tmp_path / "root")))


@dataclass(frozen=True)
class Publisher:
    """Of the pictures: the folder that is served, what was asked for, and the corpus as a user's own file."""

    folder: Path
    server: Server
    file: Path

    @property
    def corpus(self) -> Corpus:
        return corpora.load(str(self.file))

    def withdraw(self, *names: str) -> None:
        for name in names:
            (self.folder / "pictures" / name).rename(self.folder / name)

    def restore(self, *names: str) -> None:
        for name in names:
            (self.folder / name).rename(self.folder / "pictures" / name)

    def list_media(self, *names: str) -> None:
        lines = (f"{self.server.url}/pictures/{name}\n" for name in names)
        (self.folder / "pictures.txt").write_text("".join(lines))

    def asked(self) -> list[str]:
        """What was asked for since the last time."""
        paths = [request.path for request in self.server.requests]
        self.server.requests.clear()
        return paths


@contextmanager
def publishing(base: Path, behaviours: Mapping[str, Sequence[Behaviour]] | None = None) -> Iterator[Publisher]:
    folder = base / "published"
    (folder / "pictures").mkdir(parents=True)
    for name in PICTURES:
        (folder / "pictures" / name).write_bytes(name.encode() * 500)
    captions = (f"{name}\tcaption {number} of {name}\n" for name in PICTURES for number in range(2))
    (folder / "captions.tsv").write_text("".join(captions))
    (folder / "splits.json").write_text(json.dumps({"pictures/train": PICTURES[:6], "pictures/val": PICTURES[6:]}))
    with serve(folder, behaviours) as server:
        file = base / "mine.py"
        file.write_text(FIXTURE.read_text().replace("http://127.0.0.1:9", server.url))
        publisher = Publisher(folder, server, file)
        publisher.list_media(*PICTURES)
        yield publisher


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Publisher]:
    with publishing(tmp_path) as publisher:
        yield publisher


def absent(sealed: Output) -> list[str]:
    return [locked.path.rpartition("/")[2] for locked in read_lock(sealed) if not locked.sha256]


def lock_bytes(sealed: Output) -> bytes:
    with sealed.open(LOCK) as file:
        return file.read()


def damage_of(site: BuildOptions) -> list[str]:
    return [f"{found.file}: {found.problem}" for found in verify(site.storage, ProgressLine(quiet=True))[1]]


class Parses:
    """A corpus whose parses are counted."""

    def __init__(self, corpus: Corpus) -> None:
        self.count = 0
        self.corpus = replace(corpus, parse=self._counting(corpus.parse))

    def _counting(self, parse: Callable[[Raw], Iterator[Row]]) -> Callable[[Raw], Iterator[Row]]:
        def counted(raw: Raw) -> Iterator[Row]:
            self.count += 1
            return parse(raw)

        return counted


# ---------------------------------------------------------------------------------------------------- sums of attempts

OK, LATER_OK = FetchAttempt("a", "ok", 10.0, 1.0, 5, "f" * 64), FetchAttempt("a", "ok", 40.0, 1.0, 6, "e" * 64)
EARLIER, LATER = (
    FetchAttempt("a", "failed", 5.0, 1.0, kind="http_503", reason="busy"),
    FetchAttempt("a", "failed", 20.0, 1.0, kind="timeout", reason="slow"),
)
DAMAGED = FetchAttempt("a", "failed", 30.0, 0.0, kind="damaged", reason="its bytes under this root were damaged")


@pytest.mark.parametrize(
    ("attempts", "status", "kind", "size"),
    [
        ([OK], "ok", "", 5),
        ([EARLIER], "failed", "http_503", 0),
        ([EARLIER, LATER], "failed", "timeout", 0),
        ([EARLIER, OK], "ok", "", 5),
        ([EARLIER, OK, LATER], "ok", "", 5),
        ([OK, DAMAGED], "failed", "damaged", 0),
        ([OK, LATER, DAMAGED], "failed", "damaged", 0),
        ([EARLIER, OK, LATER, DAMAGED, LATER_OK], "ok", "", 6),
        ([replace(OK, status="local"), LATER], "local", "", 5),
    ],
)
def test_a_success_stays_one_unless_its_bytes_are_lost_in_whatever_order_the_news_comes(
    attempts: list[FetchAttempt], status: str, kind: str, size: int, tmp_path: Path
) -> None:
    for number, order in enumerate(permutations(attempts)):
        ledger = Ledger(open_storage(f"{tmp_path}/{number % 5}"), "media", f"toy{number}")
        for attempt in order:
            ledger.add([attempt])
        (state,) = ledger.states()
        assert (state.status, state.kind, state.size) == (status, kind, size)
        assert state.attempts == len(attempts)
        assert (state.first_at, state.last_at) == (min(a.at for a in attempts), max(a.at for a in attempts))


def test_an_attempt_that_is_told_twice_is_one(tmp_path: Path) -> None:
    ledger = Ledger(open_storage(str(tmp_path)), "media", "toy")
    ledger.add([EARLIER, OK])
    ledger.add([OK])
    ledger.add([EARLIER, OK])
    assert [state.attempts for state in ledger.states()] == [2]


def test_a_summary_counts_by_status_and_class_with_examples_that_say_why(tmp_path: Path) -> None:
    ledger = Ledger(open_storage(str(tmp_path)), "media", "toy")
    ledger.add([replace(LATER, path=f"slow{number}") for number in range(5)] + [replace(OK, path="good")])
    summary = ledger.summary()
    assert summary["files"] == {"failed": 5, "ok": 1}
    assert (summary["failures"], summary["attempts"], summary["bytes"]) == ({"timeout": 5}, 6, 5)
    assert [example["path"] for example in summary["examples"]["timeout"]] == ["slow0", "slow1", "slow2"]
    assert summary["examples"]["timeout"][0]["reason"] == "slow"


def test_twenty_thousand_rows_are_summed_up_and_sealed_in_seconds(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    ledger = Ledger(storage, "media", "toy")
    paths = [f"{number:05d}.jpg" for number in range(20_000)]
    for first in range(0, 20_000, 500):
        some = paths[first : first + 500]
        ledger.add([replace(OK, path=path) if path[4] != "7" else replace(LATER, path=path) for path in some])
    ledger.compact()
    assert ledger.summary()["files"] == {"ok": 18_000, "failed": 2_000}
    sealed = FileSet(storage, "media", "toy", tuple(Source(path, "http://127.0.0.1/") for path in paths)).seal()
    assert sealed.totals["counts"] == {"present": 18_000, "absent": 2_000}
    assert [locked.path for locked in read_lock(sealed)] == paths


FEW_FILES = """
import resource, sys
from pipelines.fetching.ledger import Ledger
from xmodal.root.storage import open_storage
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
ledger = Ledger(open_storage(sys.argv[1]), "media", "toy")
print(sum(1 for _ in ledger.states()))
ledger.compact()
print(sum(1 for _ in ledger.states()))
"""


def test_a_ledger_that_killed_drivers_left_in_many_pieces_can_still_be_read(tmp_path: Path) -> None:
    """A driver that is killed leaves up to some hundred segments; each of several, as many again."""
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 128
    ledger = Ledger(open_storage(str(tmp_path)), "media", "toy")
    for number in range(400):
        ledger.add([replace(OK, path=f"{number:03d}.jpg")])
    command = [sys.executable, "-c", FEW_FILES, str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.stdout.split() == ["400", "400"], found.stderr[-300:]


# --------------------------------------------------------------------------------------------------------------- retry


def test_a_retry_asks_for_the_failed_files_and_nothing_else(site: BuildOptions, publisher: Publisher) -> None:
    publisher.withdraw("p001.jpg", "p004.jpg")
    CorpusBuild(site, publisher.corpus).build("media")
    publisher.asked()
    publisher.restore("p004.jpg")
    told = CorpusBuild(site, publisher.corpus).files.retry()
    assert (told["tried"], told["recovered"]) == (2, 1)
    (why,) = told["reasons"].values()
    assert (told["reasons"].keys(), why["files"], why["path"]) == ({"http_404"}, 1, "pictures/p001.jpg")
    assert sorted(publisher.asked()) == ["pictures/p001.jpg", "pictures/p004.jpg"]
    told = CorpusBuild(site, publisher.corpus).files.retry()
    assert (told["tried"], told["recovered"]) == (1, 0)
    assert publisher.asked() == ["pictures/p001.jpg"]
    states = {state.path: state for state in Ledger(site.storage, "media", "pictures").states()}
    assert states["pictures/p001.jpg"].attempts == 3
    assert states["pictures/p004.jpg"].attempts == 2
    assert states["pictures/p000.jpg"].attempts == 1


def test_a_retry_of_one_class_leaves_the_others(site: BuildOptions, tmp_path: Path) -> None:
    refused = {"pictures/p002.jpg": [Behaviour(status=403)], "pictures/p003.jpg": [Behaviour(status=410)]}
    with publishing(tmp_path, refused) as publisher:
        CorpusBuild(site, publisher.corpus).build("media")
        publisher.asked()
        assert CorpusBuild(site, publisher.corpus).files.retry("http_403") == {"tried": 1, "recovered": 1}
        assert publisher.asked() == ["pictures/p002.jpg"]
        assert CorpusBuild(site, publisher.corpus).files.retry("timeout") == {"tried": 0, "recovered": 0}
        assert publisher.asked() == []


def test_a_retry_counts_only_what_it_tried(site: BuildOptions, publisher: Publisher) -> None:
    """A row of a file that is no longer listed is neither tried nor recovered."""
    publisher.withdraw("p001.jpg", "p002.jpg")
    CorpusBuild(site, publisher.corpus).build("media")
    publisher.list_media(*PICTURES[2:])
    _forget_sources(site)
    CorpusBuild(site, publisher.corpus).build("media")
    told = CorpusBuild(site, publisher.corpus).files.retry()
    assert (told["tried"], told["recovered"]) == (1, 0)


def test_a_rebuild_does_not_ask_again_for_what_is_gone(site: BuildOptions, publisher: Publisher) -> None:
    publisher.withdraw("p001.jpg")
    first = CorpusBuild(site, publisher.corpus).build("media")
    publisher.asked()
    assert CorpusBuild(site, publisher.corpus).build("media").identity == first.identity
    assert publisher.asked() == []


# ---------------------------------------------------------------------------------------------------------------- seal


def test_a_lock_says_which_bytes_and_nothing_of_how_they_came(tmp_path: Path) -> None:
    slow = {"pictures/p005.jpg": [Behaviour(status=503), Behaviour(cut_after=100)]}
    with publishing(tmp_path, slow) as publisher:
        publisher.withdraw("p003.jpg", "p006.jpg")
        one, other = (BuildOptions(open_storage(str(tmp_path / name))) for name in ("one", "other"))
        CorpusBuild(one, publisher.corpus).build("media")
        publisher.withdraw("p000.jpg", "p007.jpg")
        CorpusBuild(other, publisher.corpus).build("media")
        publisher.restore("p007.jpg", "p000.jpg")
        for _ in range(3):
            CorpusBuild(other, publisher.corpus).files.retry()
        CorpusBuild(other, publisher.corpus).files.reseal()
        first, second = (
            CorpusBuild(one, publisher.corpus).build("media"),
            CorpusBuild(other, publisher.corpus).build("media"),
        )
    assert lock_bytes(first) == lock_bytes(second)
    assert first.identity == second.identity
    assert absent(first) == ["p003.jpg", "p006.jpg"]
    assert b"404" not in lock_bytes(first)
    assert publisher.server.url.encode() not in lock_bytes(first)


def test_an_absent_file_is_refused_when_it_is_opened(site: BuildOptions, publisher: Publisher) -> None:
    publisher.withdraw("p003.jpg")
    raw = raw_of(CorpusBuild(site, publisher.corpus).build("media"))
    assert "pictures/p002.jpg" in raw
    assert "pictures/p003.jpg" not in raw
    with pytest.raises(UserError, match=r"pictures/p003\.jpg"):
        raw.open("pictures/p003.jpg")


def test_a_late_success_is_a_new_set_that_reuses_all_that_did_not_change(
    site: BuildOptions, publisher: Publisher
) -> None:
    parses = Parses(publisher.corpus)
    publisher.withdraw("p003.jpg")
    old, records = CorpusBuild(site, parses.corpus).build("media"), CorpusBuild(site, parses.corpus).build("records")
    publisher.restore("p003.jpg")
    CorpusBuild(site, parses.corpus).files.retry()
    assert CorpusBuild(site, parses.corpus).build("media").identity == old.identity, (
        "a set changes when it is sealed, not before"
    )
    publisher.asked()
    CorpusBuild(site, parses.corpus).files.reseal()
    new = CorpusBuild(site, parses.corpus).build("media")
    assert (absent(old), absent(new)) == (["p003.jpg"], [])
    assert new.identity != old.identity
    assert CorpusBuild(site, parses.corpus).build("records").identity == records.identity
    assert parses.count == 1
    assert publisher.asked() == []
    assert damage_of(site) == []


def test_a_seal_without_news_is_the_same_set(site: BuildOptions, publisher: Publisher) -> None:
    first = CorpusBuild(site, publisher.corpus).build("media")
    before = tree_digest(site.storage.url)
    assert CorpusBuild(site, publisher.corpus).files.reseal()["media"] == first.identity
    assert tree_digest(site.storage.url) == before


def test_checksums_that_are_pinned_later_and_hold_cost_neither_a_fetch_nor_a_parse(
    site: BuildOptions, publisher: Publisher
) -> None:
    parses = Parses(publisher.corpus)
    first = CorpusBuild(site, parses.corpus).build("records")
    sealed = FileSet(site.storage, "annotations", "pictures", parses.corpus.sources).sealed
    assert sealed is not None
    digests = {locked.path: locked.sha256 for locked in read_lock(sealed)}
    pinned = replace(parses.corpus, sources=tuple(replace(s, sha256=digests[s.path]) for s in parses.corpus.sources))
    publisher.asked()
    second = CorpusBuild(site, pinned).build("records")
    assert second.identity != first.identity
    assert list(second.units()) == list(first.units())
    assert publisher.asked() == []
    assert parses.count == 1


def test_a_checksum_that_is_pinned_later_and_does_not_hold_stops_the_build(
    site: BuildOptions, publisher: Publisher
) -> None:
    corpus = publisher.corpus
    CorpusBuild(site, corpus).build("sources")
    first, *rest = corpus.sources
    with pytest.raises(UserError, match=r"captions\.tsv \(checksum"):
        CorpusBuild(site, replace(corpus, sources=(replace(first, sha256="0" * 64), *rest))).build("sources")


def test_a_longer_list_of_files_is_fetched_as_far_as_it_is_new(site: BuildOptions, publisher: Publisher) -> None:
    publisher.list_media(*PICTURES[:5])
    short = CorpusBuild(site, publisher.corpus).build("media")
    publisher.asked()
    publisher.list_media(*PICTURES)
    _forget_sources(site)
    long = CorpusBuild(site, publisher.corpus).build("media")
    assert sorted(path for path in publisher.asked() if "/" in path) == [f"pictures/{name}" for name in PICTURES[5:]]
    assert (short.totals["counts"]["present"], long.totals["counts"]["present"]) == (5, 8)
    assert FileSet(site.storage, "media", "pictures", tuple(_listed(publisher, PICTURES))).sealed == long


def test_two_listed_files_of_one_path_are_refused(site: BuildOptions, publisher: Publisher) -> None:
    with (publisher.folder / "pictures.txt").open("a") as file:
        file.write(f"{publisher.server.url}/other/p001.jpg\n")
    with pytest.raises(UserError, match=r"pictures/p001\.jpg"):
        CorpusBuild(site, publisher.corpus).build("media")


def test_what_was_never_tried_is_not_sealed_as_absent(site: BuildOptions, publisher: Publisher) -> None:
    CorpusBuild(site, publisher.corpus).build("records")
    CorpusBuild(site, publisher.corpus).files.reseal()
    assert absent(CorpusBuild(site, publisher.corpus).build("media")) == []


def test_files_that_parsing_needs_are_never_sealed_as_absent(site: BuildOptions, publisher: Publisher) -> None:
    captions = publisher.folder / "captions.tsv"
    captions.rename(publisher.folder / "away")
    with pytest.raises(UserError, match=r"1 of 3 files are missing: captions\.tsv"):
        CorpusBuild(site, publisher.corpus).build("records")
    with pytest.raises(UserError, match=r"captions\.tsv"):
        CorpusBuild(site, publisher.corpus).files.reseal()
    (publisher.folder / "away").rename(captions)
    assert CorpusBuild(site, publisher.corpus).build("records").totals["counts"]["captions"] == 16


# ----------------------------------------------------------------------------------------- two drivers, and lost bytes


def test_two_drivers_that_build_and_seal_at_once_agree(
    site: BuildOptions, publisher: Publisher, tmp_path: Path
) -> None:
    publisher.withdraw("p003.jpg")
    alone = BuildOptions(open_storage(str(tmp_path / "alone")))
    CorpusBuild(alone, publisher.corpus).build("media")
    CorpusBuild(alone, publisher.corpus).build("records")
    sources = CorpusBuild(site, publisher.corpus).build("sources")
    with ThreadPoolExecutor(4) as pool:
        sites = [BuildOptions(open_storage(site.storage.url)) for _ in range(4)]
        media = [pool.submit(CorpusBuild(other, publisher.corpus).build, "media") for other in sites[:2]]
        records = [pool.submit(CorpusBuild(other, publisher.corpus).build, "records") for other in sites[2:]]
        assert len({result.result().identity for result in media}) == 1
        assert len({result.result().identity for result in records}) == 1
    assert CorpusBuild(site, publisher.corpus).build("sources") == sources
    assert tree_digest(site.storage.url) == tree_digest(alone.storage.url)
    assert damage_of(site) == []


def test_seals_at_once_of_one_ledger_are_one_set(site: BuildOptions, publisher: Publisher) -> None:
    publisher.withdraw("p003.jpg")
    CorpusBuild(site, publisher.corpus).build("media")
    publisher.restore("p003.jpg")
    CorpusBuild(site, publisher.corpus).files.retry()
    with ThreadPoolExecutor(4) as pool:
        sites = [BuildOptions(open_storage(site.storage.url)) for _ in range(4)]
        results = [pool.submit(CorpusBuild(other, publisher.corpus).files.reseal) for other in sites]
        assert len({result.result()["media"] for result in results}) == 1
    assert absent(CorpusBuild(site, publisher.corpus).build("media")) == []
    assert damage_of(site) == []


def test_a_file_that_another_driver_is_still_downloading_is_not_sealed_as_absent(site: BuildOptions) -> None:
    hold = threading.Event()
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody"
    with scripted(*[answer] * 3, hold=hold) as url, ThreadPoolExecutor(2) as pool:
        corpus = Corpus(
            *("slow", "http://127.0.0.1", "CC0-1.0", "slow", ()),
            parse=lambda raw: iter(()),
            media=lambda raw: iter([Source("a.jpg", f"{url}/a.jpg", part="media")]),
        )
        sites = [BuildOptions(open_storage(site.storage.url)) for _ in range(2)]
        results = [pool.submit(CorpusBuild(other, corpus).build, "media") for other in sites]
        threading.Timer(0.4, hold.set).start()
        sealed = [result.result() for result in results]
    assert [absent(each) for each in sealed] == [[], []]


def test_lost_bytes_are_fetched_again_however_many_sets_share_them(site: BuildOptions, publisher: Publisher) -> None:
    """Whichever set is looked at first, the ledger in use must hear of the loss."""
    late = PICTURES[:4]
    publisher.withdraw(*late)
    CorpusBuild(site, publisher.corpus).build("media")
    for name in late:
        publisher.restore(name)
        CorpusBuild(site, publisher.corpus).files.retry()
        CorpusBuild(site, publisher.corpus).files.reseal()
        publisher.asked()
        _damage_blob(site, _sha256(CorpusBuild(site, publisher.corpus).build("media"), "pictures/p007.jpg"))
        forget(site.storage, verify(site.storage, ProgressLine(quiet=True))[1])
        CorpusBuild(site, publisher.corpus).files.retry()
        assert "pictures/p007.jpg" in publisher.asked()
        assert damage_of(site) == []


def test_bytes_that_two_corpora_share_are_fetched_again_for_either(site: BuildOptions, publisher: Publisher) -> None:
    one, other = (replace(publisher.corpus, name=name, media_set=name) for name in ("one", "other"))
    CorpusBuild(site, one).build("records")
    lost = _sha256(CorpusBuild(site, other).build("sources"), "captions.tsv")
    for corpus in (one, other):
        publisher.asked()
        _damage_blob(site, lost)
        forget(site.storage, verify(site.storage, ProgressLine(quiet=True))[1])
        CorpusBuild(site, corpus).files.retry()
        assert publisher.asked() == ["captions.tsv"]
        assert damage_of(site) == []


def _sha256(sealed: Output, path: str) -> str:
    return next(str(locked.sha256) for locked in read_lock(sealed) if locked.path == path)


def _damage_blob(site: BuildOptions, sha256: str) -> None:
    blob = Path(site.storage.url, "blobs", sha256[:2], sha256)
    blob.write_bytes(b"x" * blob.stat().st_size)


def _forget_sources(site: BuildOptions) -> None:
    """As if the annotations had never been fetched."""
    site.storage.delete_folder("sources")
    site.storage.delete_folder("_runs/ledger/sources")


def _listed(publisher: Publisher, names: list[str]) -> list[Source]:
    return [Source(f"pictures/{name}", f"{publisher.server.url}/{name}", part="media") for name in names]


def test_states_are_data(tmp_path: Path) -> None:
    ledger = Ledger(open_storage(str(tmp_path)), "annotations", "toy")
    assert list(ledger.states()) == []
    ledger.add([OK])
    assert list(ledger.states()) == [State("a", "ok", 1, 10.0, 10.0, 5, "f" * 64, "", "")]
    assert ledger.sealed is None
