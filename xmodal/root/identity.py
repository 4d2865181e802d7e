"""Identity: the fingerprint of everything that decides an output, and nothing else.

Fields are sorted, 1 and 1.0 are one number, lists are tuples; a set, a path, a function or NaN is refused. A field with
the metadata DESCRIBES is in no identity; one declared by `since` is in none while it has its default.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import Field, field, fields, is_dataclass
from typing import Any

DESCRIBES = {"describes": True}
DIGITS = 16  # of a directory's name: 64 bits, checked against the whole stage.json when the directory is opened


def since(version: str, default: object) -> Any:
    """Declares a field that came with a version of xmodal; its default means what was done before."""
    to_plain(default)
    return field(default=default, metadata={"since": version})


def fingerprint(value: object) -> str:
    """Hashes a value's canonical form."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def canonical_json(value: object) -> bytes:
    """Writes JSON that is compared or hashed: sorted keys, no spaces, UTF-8."""
    plain = to_plain(value)
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def to_plain(value: object) -> Any:
    """Turns dataclasses, with their names, and all else into JSON values."""
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} has no canonical form: give a finite number")
        return int(value) if value.is_integer() else value
    if is_dataclass(value) and not isinstance(value, type):
        decided = {f.name: to_plain(getattr(value, f.name)) for f in fields(value) if decides(f, value)}
        return {"_type": type(value).__name__} | decided
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError(f"a mapping in a config has text keys, not {list(value)}")
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no canonical form: use plain values, tuples and frozen dataclasses")


def decides(field: Field[Any], config: object) -> bool:
    """Whether a field of a config is in its identity."""
    if "since" in field.metadata:
        return bool(to_plain(getattr(config, field.name)) != to_plain(field.default))
    return "describes" not in field.metadata
