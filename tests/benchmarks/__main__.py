"""`python -m tests.benchmarks [--only SECTION] [--anchors DIR]`: measures, then writes results.json and the tables."""

import argparse
import importlib
import json
import pkgutil
import re
import sys
import time
from pathlib import Path

import tests.benchmarks
from tests.benchmarks.measured import Bar, Measured

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
README = HERE.parent.parent / "README.md"


def sections() -> list[str]:
    modules = pkgutil.iter_modules(tests.benchmarks.__path__)
    return sorted(m.name.removeprefix("bench_") for m in modules if m.name.startswith("bench_"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=sections())
    parser.add_argument("--anchors", type=Path, help="a folder of public checkouts to compare with")
    chosen = parser.parse_args()
    missed = False
    for section in [chosen.only] if chosen.only else sections():
        module = importlib.import_module(f"tests.benchmarks.bench_{section}")
        for measured in module.measure(chosen.anchors):  # kept at once, so that what fails later loses nothing
            _keep(section, measured)
            missed |= not _report(section, measured, module.BARS)
    _render()
    return int(missed)


def _keep(section: str, measured: dict[str, Measured]) -> None:
    """Only the keys that were measured are replaced: those that need anchors keep their dated values without."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    today = time.strftime("%Y-%m-%d", time.gmtime())
    results.setdefault(section, {}).update({key: m.as_json() | {"date": today} for key, m in measured.items()})
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


def _report(section: str, measured: dict[str, Measured], bars: dict[str, Bar]) -> bool:
    reached = True
    for key, found in measured.items():
        holds = bars[key].holds(found.value)
        reached &= holds
        print(f"{section:8} {key:28} {found.value:10.4g} {found.unit:6} {bars[key]}  {'' if holds else 'MISSED'}")
    return reached


def _render() -> None:
    """Puts each section's table between its markers in the README."""
    text, results = README.read_text(), json.loads(RESULTS.read_text())
    for section, rows in results.items():
        table = ["| measured | value | against | date |", "| --- | --: | --- | --- |"]
        table += [
            f"| {k} | {r['value']:.4g} {r['unit']} | {r['against']} | {r['date']} |" for k, r in sorted(rows.items())
        ]
        pattern = re.compile(rf"(<!-- bench:{section} -->\n).*?(<!-- end -->)", re.S)
        text = pattern.sub(lambda match, table=table: match[1] + "\n".join(table) + "\n" + match[2], text)
    README.write_text(text)


sys.exit(main())
