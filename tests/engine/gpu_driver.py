"""A process that builds on Ray, which believes in two CPUs and a GPU. Arguments: root, toy stage, its numbers."""

import sys
from dataclasses import replace

import ray

from pipelines.engine.building import build
from pipelines.engine.ray_runner import RayRunner, disconnect
from pipelines.engine.stage import Resources
from tests import toy_stages
from xmodal.root.storage import open_storage

if __name__ == "__main__":
    root, name, *numbers = sys.argv[1:]
    stage = replace(getattr(toy_stages, name)(*map(int, numbers)), resources=Resources(gpus=1))
    ray.init(address="local", num_cpus=2, num_gpus=1, include_dashboard=False, object_store_memory=2**27)
    build(stage, open_storage(root), RayRunner())
    disconnect()
