"""`make demo`: measure a real training run and leave a report to open."""

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1]
RUN = FOLDER / "demo-run"


def main() -> None:
    train = [sys.executable, "examples/train_mlp.py", "--steps", "500"]
    command = [sys.executable, "-m", "memfit", "measure", "--ledger", "--force", "-o", RUN.name, "--", *train]
    print("$", "memfit", *command[3:], flush=True)
    code = subprocess.run(command, cwd=FOLDER, check=False).returncode
    if code:
        sys.exit(code)
    print(f"\nOpen the report in a browser: {RUN.name}/report.html", flush=True)


if __name__ == "__main__":
    main()
