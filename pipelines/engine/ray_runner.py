"""Ray runner: a pool of actors that pull units, any of which may die at any time. Only this module imports Ray.

A dead worker is replaced, its calls go to others, and a unit that kills its worker three times is named in an error.
Ray Data would abort all on one exception, by default retry such a unit forever, and cost about 9 ms a block.
"""

import logging
import os
import shutil
import socket
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from pipelines.engine.building import Call, OpenWorker, Pace, Units
from pipelines.engine.commits import Record
from pipelines.engine.stage import Resources
from xmodal.errors import UserError

IN_FLIGHT = 2  # calls per actor for each at work: that and one waiting
UNITS_BESIDE = 2  # of a worker with a GPU: one unit is at the network, one writes, and as many as it has CPUs decode
DEATHS_A_UNIT = 3
START_SECONDS = 600.0
OBJECT_STORE_BYTES = 512 * 2**20
KNOCK_SECONDS = 10.0
LEAST_BYTES = 16 * 2**20  # of logs and sockets: without room it waits for half a minute, and ends in its own words
OLD_SECONDS = 86_400.0


@dataclass(frozen=True)
class RayRunner:
    """Runs units on the Ray cluster at `address`, or on a local one that ends with the process."""

    workers: int = 0  # 0: as many as the cluster has room for
    address: str | None = None

    def __call__(self, open_worker: OpenWorker, units: Units, resources: Resources) -> Iterator[Record]:
        connect(self.address)
        resources = _with_share(resources)
        room = _room(resources)
        pool = _Pool(open_worker, units, resources, min(self.workers or room, room))
        try:
            yield from pool.results()
        finally:
            pool.stop()


def train_together(
    train: Callable[[str], dict[str, Any]], workers: int, folder: str, gpu: bool, address: str | None
) -> dict[str, Any]:
    """Runs `train` in several processes by Ray Train, and returns the first one's result.

    Each gets the path of a file in `folder`, which all see; lines written to it are shown here. If one dies the others
    are ended; the same call again continues from the last checkpoint.
    """
    from ray import train as ray_train  # imports torch, which workers of stages do not need
    from ray.train.torch import TorchTrainer

    connect(address)
    if (room := _room(Resources(gpus=float(gpu)))) < workers:
        raise UserError(f"the Ray cluster has room for {room} of {workers} processes that train: give --workers {room}")
    needs = {"CPU": 1.0, "GPU": 1.0} if gpu else {"CPU": 1.0}
    sizes = ray_train.ScalingConfig(num_workers=workers, use_gpu=gpu, resources_per_worker=needs)
    with tempfile.TemporaryDirectory(prefix=".ray-", dir=folder) as notes, _copied_to_stderr(f"{notes}/lines") as lines:
        act: Any = partial(train, lines)
        run = ray_train.RunConfig(name="train", storage_path=notes)
        try:
            result: Any = TorchTrainer(act, scaling_config=sizes, run_config=run).fit()
        except ray_train.WorkerGroupError as error:
            troubles = [failure for failure in error.worker_failures.values() if isinstance(failure, UserError)]
            raise troubles[0] if troubles else error from None
    return dict(result.return_value)


@contextmanager
def _copied_to_stderr(path: str) -> Iterator[str]:
    """Copies what other processes write to a file, without Ray's messages."""
    over = Event()

    def copy() -> None:
        with open(path, "a+") as file:
            ends = False
            while not ends:
                ends = over.wait(0.5)
                sys.stderr.write(file.read())

    thread = Thread(target=copy)
    thread.start()
    try:
        yield path
    finally:
        over.set()
        thread.join()


def connect(address: str | None = None) -> None:
    """Joins the cluster at `address`, or starts a local one, unless connected already."""
    if ray.is_initialized():
        return
    start = partial(ray.init, log_to_driver=False, logging_level=logging.ERROR)
    address = address or os.environ.get("RAY_ADDRESS")  # set inside a Ray job
    if address is None:
        _sweep(Path(_short_folder()))
        place = os.path.dirname(_short_folder())
        if (free := shutil.disk_usage(place).free) < LEAST_BYTES:
            cure = "free some, have TMPDIR name a folder of another disk, or build with --serial"
            raise UserError(f"Ray has no room in {place}, with {free:,} bytes free: {cure}")
        start(
            address="local",
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            _temp_dir=_short_folder(),
            _system_config={"task_events_report_interval_ms": 0},  # halves the driver's memory over 100,000 calls
        )
        return
    host, _, port = address.rpartition(":")
    try:
        if port.isdigit() and "://" not in address:  # else Ray would wait for minutes
            socket.create_connection((host.strip("[]"), int(port)), KNOCK_SECONDS).close()
        start(address=address)
    except (OSError, ValueError) as error:
        cure = "start one with `ray start --head`, or leave --address out"
        raise UserError(f"no Ray cluster at {address}: {cure}") from error


def disconnect() -> None:
    ray.shutdown()


def _sweep(folder: Path) -> None:
    """Deletes what clusters of ended drivers left more than a day ago."""
    for session in folder.glob("session_*_*"):  # its name ends with its driver's process
        try:
            os.kill(int(session.name.rpartition("_")[2]), 0)
        except ProcessLookupError:
            if time.time() - session.stat().st_mtime > OLD_SECONDS:
                shutil.rmtree(session, ignore_errors=True)
        except (ValueError, PermissionError):
            continue


def _short_folder() -> str:
    # Paths of Ray's sockets have at most 107 bytes, whatever TMPDIR says.
    name, folder = f"xmodal-ray-{os.getuid()}", tempfile.gettempdir()
    return f"{folder if len(folder) < 25 else '/tmp'}/{name}"


def _nodes() -> list[dict[str, float]]:
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def _with_share(resources: Resources) -> Resources:
    """Gives a worker with a GPU its share of the machine's CPUs, on any machine that has one."""
    fits = [node for node in _nodes() if node.get("GPU", 0) >= resources.gpus > 0]
    shares = [node.get("CPU", 0) // (node["GPU"] // resources.gpus) for node in fits]
    return replace(resources, cpus=max(resources.cpus, min(shares, default=0)))


def _room(resources: Resources) -> int:
    """Counts the workers that fit into the cluster at once."""
    nodes = _nodes()
    needs = {"CPU": resources.cpus, "GPU": resources.gpus}
    needs = {name: amount for name, amount in needs.items() if amount > 0} or {"CPU": 1.0}
    room = sum(min(int(node.get(name, 0) // amount) for name, amount in needs.items()) for node in nodes)
    if room < 1:
        most = {name: max(node.get(name, 0) for node in nodes) for name in needs}
        wanted, there = (", ".join(f"{each[name]:g} {name}" for name in needs) for each in (needs, most))
        raise UserError(f"no node of the Ray cluster has room for a worker: it needs {wanted} of {there}")
    return room


class _Actor:
    """Runs in the worker process."""

    def __init__(self, open_worker: OpenWorker) -> None:
        self._open = cache(open_worker)  # with the first call: a failure there is an error, not a death

    def run(self, call: Call) -> tuple[float, list[Record]]:
        work = self._open()
        started = time.perf_counter()
        records = work(call)
        return time.perf_counter() - started, records


@dataclass
class _Member:
    actor: Any
    calls: dict[Any, Call]  # oldest first


class _Pool:
    """Actors and their calls; an actor gets some after it answered an empty one."""

    def __init__(self, open_worker: OpenWorker, units: Units, resources: Resources, size: int) -> None:
        needs: dict[str, Any] = {"num_cpus": resources.cpus, "num_gpus": resources.gpus}
        self._at_once = int(resources.cpus) + UNITS_BESIDE if resources.gpus else 1
        needs["max_concurrency"] = self._at_once
        self._actor = ray.remote(max_restarts=0, max_task_retries=0, **needs)(_Actor)
        self._open = ray.put(open_worker)
        self._units, self._next, self._pace = units, deque[Call](), Pace()
        self._suspects, self._deaths = set[str](), Counter[str]()
        self._openings_failed, self._heard = 0, time.monotonic()
        self._members = [self._start() for _ in range(size)]

    def results(self) -> Iterator[Record]:
        while any(any(member.calls.values()) for member in self._members) or self._has_next():
            waiting = {call: member for member in self._members for call in member.calls}
            done, _ = ray.wait(list(waiting), num_returns=1, timeout=60)
            if not done:
                # units may take hours, but workers must start
                starting = not any(all(member.calls.values()) for member in self._members)
                if starting and time.monotonic() - self._heard > START_SECONDS:
                    raise UserError(f"no worker starts in {START_SECONDS:.0f} seconds: is the cluster full?")
                continue
            (ready,) = done
            member = waiting[ready]
            try:
                seconds, records = ray.get(ready)
            except RayActorError as error:
                self._replace(member, error)
                continue
            except RayTaskError as error:
                cause = error.cause if isinstance(error.cause, Exception) else error
                if not isinstance(cause, UserError | OSError | RayTaskError):
                    cause.add_note(str(error))  # the worker's traceback
                raise cause from None
            self._openings_failed, self._heard = 0, time.monotonic()
            if call := member.calls.pop(ready):
                self._pace.saw(len(call), seconds)
            self._feed()
            yield from records

    def stop(self) -> None:
        for member in self._members:
            ray.kill(member.actor)

    def _start(self) -> _Member:
        actor: Any = self._actor.remote(self._open)
        return _Member(actor, {actor.run.remote([]): []})

    def _feed(self) -> None:
        # Slow calls wait here, where any worker may take them.
        for most in range(self._at_once * (IN_FLIGHT if self._pace.is_quick else 1)):
            for member in self._members:
                if len(member.calls) <= most and self._has_next() and self._may_take(member, self._next[0]):
                    call = self._next.popleft()
                    member.calls[member.actor.run.remote(call)] = call

    def _may_take(self, member: _Member, call: Call) -> bool:
        # a dead worker's unit is tried alone, so that another death is its own
        alone = any(name in self._suspects for one in (call, *member.calls.values()) for name, _ in one)
        return not member.calls if alone else all(member.calls.values())

    def _has_next(self) -> bool:
        if not self._next and (call := self._pace.next_call(self._units)):
            self._next.append(call)
        return bool(self._next)

    def _replace(self, member: _Member, error: RayActorError) -> None:
        """Replaces a dead actor; its units are tried again one by one."""
        units = [unit for call in member.calls.values() for unit in call]
        if len(units) == 1:  # with several nobody knows which it died of: even finished answers are lost
            name = units[0][0]
            self._deaths[name] += 1
            if self._deaths[name] == DEATHS_A_UNIT:
                raise UserError(f"unit {name} has killed its worker {DEATHS_A_UNIT} times: {_last_line(error)}")
        self._openings_failed += not units
        if self._openings_failed == DEATHS_A_UNIT * len(self._members):
            raise UserError(f"no worker lives long enough to open the stage: {_last_line(error)}")
        self._suspects.update(name for name, _ in units)
        self._next.extendleft([unit] for unit in reversed(units))
        ray.kill(member.actor)  # it may only be out of reach, and would keep what it holds
        self._members[self._members.index(member)] = self._start()
        self._feed()


def _last_line(error: Exception) -> str:
    # the text has the worker's traceback, the cause last
    return str(error).strip().rpartition("\n")[2].strip() or type(error).__name__
