"""`make demo`: one training predicted, measured, explained and fitted to 75 % of its memory, on one page to open.

The training is run for one step before, so that the measured run imports compiled files.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = Path("demo-run")
SCRIPT = "examples/train_gpt.py"
ARGUMENTS = ["--steps", "15", "--batch-size", "16", "--length", "128", "--width", "256", "--tokens", "1024"]
SHARE = 0.75
ENVIRONMENT = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])}
"""The `python` of the environment that memfit is installed in."""


def main() -> None:
    shutil.rmtree(ROOT / FOLDER, ignore_errors=True)
    (ROOT / FOLDER).mkdir()
    print("One step before: Python compiles what the training imports, so that the run shows the training.", flush=True)
    run(["python", SCRIPT, "--steps", "1", "--batch-size", "1"], quiet=True)
    prediction = ROOT / FOLDER / "prediction.json"
    with open(prediction, "wb") as file:
        run(
            ["memfit", "predict", SCRIPT, "--json", "--", *ARGUMENTS], shown=f" > {FOLDER}/prediction.json", output=file
        )
    run(["memfit", "measure", "--ledger", "--no-report", "-o", f"{FOLDER}/run", "--", "python", SCRIPT, *ARGUMENTS])
    budget = f"{int(SHARE * tensor_bytes(prediction)) >> 20}MiB"
    print(f"\n{SHARE:.0%} of the memory that its tensors take is {budget}.", flush=True)
    with open(ROOT / FOLDER / "fit.json", "wb") as file:
        fit = ["memfit", "fit", SCRIPT, "--budget", budget, "--json", "--", *ARGUMENTS]
        run(fit, shown=f" > {FOLDER}/fit.json", output=file)
    run(["memfit", "report", str(FOLDER), "-o", f"{FOLDER}/report.html"])
    print(f"\nOpen the page in a browser: {FOLDER}/report.html, or look at it live: memfit serve {FOLDER}", flush=True)


def tensor_bytes(prediction: Path) -> float:
    """The predicted peak of the tensors."""
    levels = json.loads(prediction.read_bytes())["levels"]
    return next(level["figure"]["value"] for level in levels if level["name"] == "tensors")


def run(words: list[str], *, shown: str = "", quiet: bool = False, output: object = None) -> None:
    """Run a command of this environment; the demo ends where it fails."""
    if not quiet:
        print(f"\n$ {shlex.join(words)}{shown}", flush=True)
    command = [sys.executable, "-m", *words] if words[0] == "memfit" else words
    to = subprocess.DEVNULL if quiet else output
    code = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, check=False, stdout=to).returncode  # pyright: ignore
    if code:
        sys.exit(code)


if __name__ == "__main__":
    main()
