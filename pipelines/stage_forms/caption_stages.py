"""Captions that a stage makes of pictures, one each, as views read them."""

from collections.abc import Iterable

import pyarrow as pa

from pipelines.engine.stage import Sink
from pipelines.stage_forms.array_stages import write_table
from xmodal.records.caption_sources import CAPTIONS
from xmodal.records.tables import Caption, schema


def write_captions(sink: Sink, source: str, texts: Iterable[tuple[str, str]]) -> int:
    """Writes the texts of pictures by id, but no empty ones, and counts them; `source` is the stage."""
    rows = [vars(Caption(f"{source}:{id}", id, 0, text, source)) for id, text in texts if text]
    write_table(sink, CAPTIONS, pa.Table.from_pylist(rows, schema(Caption)))
    return len(rows)
