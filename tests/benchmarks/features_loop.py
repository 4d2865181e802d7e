"""A plain loop over a folder: torchvision's transforms and resnet18, a DataLoader. Prints the steady pictures a second.

`python -m tests.benchmarks.features_loop FOLDER WORKERS THREADS`
"""

import json
import sys
import time
from pathlib import Path

import torch
import torchvision  # type: ignore[import-untyped]
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

BATCH = 32


class Pictures(Dataset[torch.Tensor]):
    def __init__(self, folder: str) -> None:
        self.paths = sorted(Path(folder).rglob("*.jpg"))
        middle = [transforms.Resize(256), transforms.CenterCrop(224)]
        mean, deviation = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
        self.see = transforms.Compose([*middle, transforms.ToTensor(), transforms.Normalize(mean, deviation)])

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> torch.Tensor:
        with Image.open(self.paths[number]) as picture:
            seen: torch.Tensor = self.see(picture.convert("RGB"))
        return seen


def main(folder: str, workers: int, threads: int) -> None:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    network = torchvision.models.resnet18(weights=None).eval()
    network.fc = torch.nn.Identity()
    rows, ends = [], []
    with torch.inference_mode():
        for batch in DataLoader(Pictures(folder), BATCH, num_workers=workers):
            rows.append(network(batch).half().numpy())
            ends.append(time.perf_counter())
    seen = sum(map(len, rows[1:]))
    print(json.dumps(seen / (ends[-1] - ends[0])))


main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
