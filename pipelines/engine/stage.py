"""A stage: what decides an output, what there is to do, and how a worker does it.

    plan(config, inputs)  → (unit name, work) in order of the names; cheap and lazy, on the driver
    open(config, inputs)  → the function that does one unit's work; once per worker, as networks load once

The config holds all that decides the bytes (weights by their sha256, device class and dtype where they change numbers)
and nothing else.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Generic, TypeVar

from pipelines.engine.commits import UnitAttempt
from xmodal import __version__
from xmodal.root.identity import DIGITS, fingerprint, to_plain
from xmodal.root.outputs import LAYOUT, Output

Config = TypeVar("Config")
Work = TypeVar("Work")
Inputs = tuple[Output, ...]
Counts = Mapping[str, int]
Sink = UnitAttempt  # of which a stage calls `file`, `fail` and `say`


def given(default: object = "") -> Any:
    """Declares a field that the stage fills in: no setting."""
    return field(default=default, metadata={"given": True})


def listed() -> Any:
    """Declares the fingerprint of a list that the stage fills in: it decides what units there are, not their bytes."""
    return field(default="", metadata={"given": True, "listed": True})


@dataclass(frozen=True)
class Resources:
    """The needs of one worker, in no identity.

    With a GPU it also has its share of the machine's CPUs, and does several units at once, in threads: some decode
    while the network computes for another.
    """

    cpus: float = 1.0
    gpus: float = 0.0


@dataclass(frozen=True)
class Stage(Generic[Config, Work]):
    """`version` rises with every change of code that changes bytes.

    With `reuse`, a unit's work names by checksum all that it reads: outputs of the same stage and config over other
    inputs lend units of equal work. `passing` are classes of failures that another try may be spared: such units are
    never lent, and `xmodal retry` makes them again.
    """

    name: str
    config: Config
    plan: Callable[[Config, Inputs], Iterator[tuple[str, Work]]]
    open: Callable[[Config, Inputs], Callable[[Work, Sink], Counts]]
    inputs: tuple["Stage[Any, Any] | Output", ...] = ()
    version: int = 1
    resources: Resources = Resources()
    reuse: bool = False
    passing: tuple[str, ...] = ()
    seconds: float = 0.0  # of one core for all units, by an estimate; in no identity, as is the next one
    remark: str = ""  # of what a user gave: a build says it
    try_files: Callable[[], object] | None = None  # refuses a user's files before the output is begun

    @property
    def identity(self) -> str:
        return fingerprint(self._decides())[:DIGITS]

    @property
    def folder(self) -> str:
        return f"{self.name}/{self.identity}"

    def about(self) -> dict[str, Any]:
        """stage.json."""
        return {"layout": LAYOUT, "identity": self.identity, "xmodal": __version__, **self._decides()}

    def work_key(self, work: Work) -> str:
        """A fingerprint of everything that decides one unit's bytes."""
        return fingerprint([self.name, self.version, without_lists(self.config, to_plain(self.config)), work])

    def _decides(self) -> dict[str, Any]:
        inputs = [{"stage": i.name if isinstance(i, Stage) else i.stage, "identity": i.identity} for i in self.inputs]
        return {"stage": self.name, "version": self.version, "config": to_plain(self.config), "inputs": inputs}


def without_lists(config: object, plain: Any) -> Any:
    """The plain values of a config of this class, without what `listed` declares."""
    if not is_dataclass(config) or not isinstance(plain, Mapping):
        return plain
    lists = {each.name for each in fields(config) if "listed" in each.metadata}
    return {name: value for name, value in plain.items() if name not in lists}


def single(
    name: str,
    config: Config,
    inputs: tuple[Any, ...],
    version: int,
    unit: str,
    write: Callable[[Config, Inputs, Sink], Counts],
) -> Stage[Config, None]:
    """A stage with one unit."""

    def opened(config: Config, inputs: Inputs) -> Callable[[None, Sink], Counts]:
        return lambda work, sink: write(config, inputs, sink)

    return Stage(name, config, lambda config, inputs: iter([(unit, None)]), opened, inputs, version)
