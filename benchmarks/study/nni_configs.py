"""Which experiment configs does NNI 3.0 accept, and which of them does memfit?

Every YAML file below a folder (a checkout of NNI's repository, for example) that looks like an experiment is given to
both readers. A config that NNI accepts for the platform `local` and memfit does not is listed with the reason.

    python -m benchmarks.study.nni_configs --nni PYTHON FOLDER
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from memfit.errors import MemfitError
from memfit.study.files.kinds import read_study_file

EXPERIMENT = re.compile(r"^(trialConcurrency|trial_concurrency|trial:|tuner:|searchSpace)", re.MULTILINE)
READER = """
import json, sys, yaml
from pathlib import Path
from nni.experiment.config import ExperimentConfig, convert, utils
found = {}
for name in json.load(sys.stdin):
    path = Path(name)
    try:
        written = yaml.safe_load(path.read_text(encoding="utf8"))
        if written.get("trainingServicePlatform"):
            new = convert.to_v2(written)
            utils.set_base_path(path.parent)
            try:
                config = ExperimentConfig(**new)
            finally:
                utils.unset_base_path()
        else:
            config = ExperimentConfig.load(path)
        if config.use_annotation:
            raise ValueError("annotations")
        service = config.canonical_copy().training_service
        found[name] = ["", str(getattr(service, "platform", "several"))]
    except BaseException as error:
        found[name] = [repr(error)[:200], ""]
print("FOUND" + json.dumps(found))
"""


def by_nni(python: str, files: list[Path]) -> dict[str, tuple[str, str]]:
    """(why it is refused, platform) of every file, by the installed NNI."""
    given = json.dumps([str(file) for file in files])
    done = subprocess.run([python, "-c", READER], input=given, capture_output=True, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith("FOUND"))
    return {name: (reason, platform) for name, (reason, platform) in json.loads(line[5:]).items()}


def by_memfit(file: Path) -> str:
    """Why it is refused; empty when it is not."""
    try:
        read_study_file(file)
    except MemfitError as error:
        return str(error)
    return ""


def main() -> int:
    """Compare, print, and say whether anything is refused without a reason that is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nni", required=True, help="the Python of an environment with nni 3.0")
    options = parser.parse_args()
    candidates = [*options.folder.rglob("*.yml"), *options.folder.rglob("*.yaml")]
    files = sorted(file for file in candidates if EXPERIMENT.search(file.read_text(errors="replace")))
    theirs = by_nni(options.nni, files)
    ours = {str(file): by_memfit(file) for file in files}
    counts = Counter((not theirs[name][0], theirs[name][1] or "-", not ours[name]) for name in theirs)
    print(f"{'NNI':<10}{'platform':<12}{'memfit':<10}{'configs':>8}")
    for (nni, platform, memfit), number in sorted(counts.items(), reverse=True):
        print(f"{'accepts' if nni else 'refuses':<10}{platform:<12}{'accepts' if memfit else 'refuses':<10}{number:>8}")
    for name, reason in ours.items():
        if reason and theirs[name] == ("", "local"):
            print(f"only NNI: {Path(name).relative_to(options.folder)}\n    {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
