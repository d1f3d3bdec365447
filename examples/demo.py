"""`make demo`: measure a real training run and leave a report to open.

The training is run for one step before, so that the measured run imports compiled files.
"""

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1]
RUN = FOLDER / "demo-run"
TRAIN = ["python", "examples/train_gpt.py", "--steps"]
ENVIRONMENT = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])}
"""The `python` of the environment that memfit is installed in."""


def main() -> None:
    print("One step before: Python compiles what the training imports, so that the run shows the training.", flush=True)
    subprocess.run(
        [*TRAIN, "1", "--batch-size", "1"], cwd=FOLDER, env=ENVIRONMENT, check=True, stdout=subprocess.DEVNULL
    )
    command = [sys.executable, "-m", "memfit", "measure", "--ledger", "--force", "-o", RUN.name, "--", *TRAIN, "15"]
    print("$", "memfit", *command[3:], flush=True)
    code = subprocess.run(command, cwd=FOLDER, env=ENVIRONMENT, check=False).returncode
    if code:
        sys.exit(code)
    print(f"\nOpen the report in a browser: {RUN.name}/report.html", flush=True)


if __name__ == "__main__":
    main()
