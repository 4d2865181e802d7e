"""Tables and long JSON as publishers ship them: what is damaged is named with its place, and nothing is half read."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from xmodal.errors import UserError
from xmodal.raw.json_values import PIECE, JsonRecord, json_elements_of, json_members
from xmodal.raw.raw_files import Raw
from xmodal.raw.readers import named_columns


def elements(text: bytes) -> list[Any]:
    return [record.content for record in json_elements_of(io.BytesIO(text), "list.json")]


def table(folder: Path, content: bytes, *names: str) -> list[tuple[str, list[str]]]:
    (folder / "list.csv").write_bytes(content)
    return list(named_columns(Raw.folder(folder), "list.csv", names))


def test_a_column_that_is_there_twice_is_refused_where_it_is_asked_for(tmp_path: Path) -> None:
    content = b"a,b,b\n1,2,3\n"
    assert table(tmp_path, content, "a") == [("list.csv:2", ["1"])]
    with pytest.raises(UserError, match=r"list\.csv:1 has several columns 'b'"):
        table(tmp_path, content, "a", "b")


def test_bytes_that_are_no_utf8_are_named_with_their_line(tmp_path: Path) -> None:
    content = b"a\n" + "ä\n".encode() * 900 + "ä".encode() + b"\xe4\n"
    with pytest.raises(UserError, match=r"list\.csv:902 is not UTF-8, at its byte 3"):
        table(tmp_path, content, "a")
    with pytest.raises(UserError, match=r"list\.csv:1 is not UTF-8, at its byte 2"):
        table(tmp_path, b"a\xed\xa0\x80\n", "a")


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_lines_of_a_table_end_as_any_system_ends_them(end: bytes, tmp_path: Path) -> None:
    rows = table(tmp_path, end.join([b"\xef\xbb\xbfa,b", '"ä", '.encode() + b"x", b""]), "a", "b")
    assert rows == [("list.csv:2", ["ä", " x"])]


@pytest.mark.parametrize("rest", [b" garbage", b"]", b"[1]", b" " * PIECE + b"x", b"\n\x00"])
def test_what_comes_after_the_end_of_an_array_is_refused(rest: bytes) -> None:
    assert elements(b'[{"a": 1}]\n  ' + b" " * PIECE) == [{"a": 1}]
    with pytest.raises(
        UserError, match=rf"list\.json is not the JSON .* at character {10 + len(rest) - len(rest.lstrip())}"
    ):
        elements(b'[{"a": 1}]' + rest)


@pytest.mark.parametrize("rest", ["", " \n", " garbage", "}"])
def test_what_comes_after_the_end_of_a_zipped_object_is_refused(rest: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.json", json.dumps({"b": [1, 2]}) + rest)
    found = json_members(Raw.folder(tmp_path), "a.zip!a.json")
    if not rest.strip():
        assert [(key, record.content, record.where) for key, record in found] == [
            ("b", 1, "a.zip!a.json: b[0]"),
            ("b", 2, "a.zip!a.json: b[1]"),
        ]
        return
    with pytest.raises(UserError, match="after its end"):
        list(found)


def test_json_that_is_nested_too_deep_is_refused() -> None:
    with pytest.raises(UserError, match=r"list\.json is not the JSON .* nested too deep"):
        elements(b"[" * 100_000)


def test_true_is_no_number() -> None:
    assert JsonRecord({"a": True}, "here").value("a", bool) is True
    assert JsonRecord({"a": 1}, "here").value("a", int) == 1
    with pytest.raises(UserError, match="here: 'a' is True, no int"):
        JsonRecord({"a": True}, "here").value("a", int)
