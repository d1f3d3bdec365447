"""`make readme`: run the commands that README.md and the READMEs of the examples show, and write their output there.

A block stands between `<!-- output: NAME DIGEST -->` and `<!-- /output -->`. It is not edited by hand: the digest is of
its text, and a test compares the two. Figures vary by machine; `shape_of` leaves the rest, which a test compares.

    python examples/readme.py                 all blocks
    python examples/readme.py predict fit     some
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"<!-- output: (\S+)(?: (\S+))? -->\n(.*?)<!-- /output -->", re.DOTALL)
BARS = re.compile(r"[▁▂▃▄▅▆▇█│⣿]+")
NUMBER = re.compile(r"[+-]?\d[\d.,]*(?:e[+-]?\d+)?")
WIDTH = 88
PROGRESS = re.compile(r"^\d+/\d+ ")


@dataclass(frozen=True, kw_only=True)
class Block:
    """One shown output: the commands, and which lines of what they print are shown."""

    file: str
    commands: tuple[str, ...]
    keep: tuple[str, ...] = ("",)
    """Regular expressions; a line is shown if one of them is found in it, and lines left out become '...'."""
    exit_code: int = 0
    seconds: int = 1800
    folder: str = "."
    """Where the commands are run, below the checkout."""


CARD = "--device cuda:rtx3060-12gb"
GPT = "memfit compare gpt --set layers=12 --set width=768"
BLOCKS: dict[str, Block] = {
    "predict": Block(
        file="README.md",
        commands=(f"memfit predict examples/train_gpt.py {CARD} -- --device cuda --batch-size 64 --length 512",),
        keep=(
            r"^examples/",
            r"^(tensors|allocated|reserved|context|device|smallest) ",
            r"^Alive",
            r"^(activation|temporary|optimizer state) ",
            r"^Would save",
            r"^It does not fit",
            r"first failure",
            r"^Error band",
        ),
        exit_code=3,
    ),
    "measure": Block(
        file="README.md",
        commands=("memfit measure --ledger -o demo-run -f -- python examples/train_gpt.py --steps 15",),
        keep=(
            r"^(✓|Peak|Steps|Where)",
            r"^      exact|repeats may",
            r"[│]|^          0 s",
            r"^  (phase|data|forward|backward|update)  ",
            r"^  (what|imports|allocator slack|optimizer state|gradient|parameter|temporary|activation|adds up)",
            r"carries a name",
        ),
    ),
    "explain": Block(
        file="README.md",
        commands=("memfit explain examples/explain/study.json",),
        keep=("^What drives", "^Found", "^• hidden", "^• memory follows", "on trials left out", "^Cannot be", "^• lr"),
    ),
    "fit": Block(
        file="README.md",
        commands=("memfit fit examples/train_gpt.py --budget 600MiB",),
        keep=(r"^memfit: ", r"trained within", r"^with everything", r"^promised", r"^in the ", r"^whole process"),
    ),
    "optimizer": Block(
        file="README.md",
        commands=(f"{GPT} --optimizer adamw,adafactor,sgd --technique plain,bf16,checkpoint {CARD} --budget 2GiB",),
    ),
}


def all_blocks() -> dict[str, Block]:
    """The README's blocks, and one for every example: its script, and all that it prints."""
    found = dict(BLOCKS)
    for script in sorted(ROOT.glob("examples/*/run.sh")):
        verb = script.parent.name
        found[f"examples/{verb}"] = Block(
            file=f"examples/{verb}/README.md", commands=(f"sh -ev {script.name}",), folder=f"examples/{verb}"
        )
    return found


def run_block(block: Block) -> str:
    """Run the commands; the text of the block, with its fence."""
    lines: list[str] = []
    for command in block.commands:
        shown = shown_lines(_run(command, block), block.keep)
        if block.folder != ".":
            typed = set((ROOT / block.folder / "run.sh").read_text(encoding="utf-8").splitlines())
            shown = [f"$ {line}" if line in typed else line for line in shown]
        lines += [*([f"$ {command}"] if block.folder == "." else []), *shown]
    return "\n".join(["```", *lines, "```", ""])


def _run(command: str, block: Block) -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, "PATH": path, "COLUMNS": str(WIDTH), "NO_COLOR": "1"}
    done = subprocess.run(
        ["sh", "-c", command], cwd=ROOT / block.folder, env=environment, text=True, timeout=block.seconds,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode != block.exit_code:
        raise SystemExit(f"{command}: exit code {done.returncode} instead of {block.exit_code}\n{done.stdout}")
    return done.stdout


def shown_lines(output: str, keep: tuple[str, ...]) -> list[str]:
    """The lines that are kept, with '...' where some were left out; nothing of this machine's paths."""
    kept: list[str] = []
    in_point = False  # a point of a list is shown, and may go on in the next line
    for line in output.replace(str(ROOT) + "/", "").replace(tempfile.gettempdir() + "/", "").splitlines():
        if PROGRESS.match(line):
            continue
        in_point = in_point and re.match(r"  \S", line) is not None
        if in_point or any(re.search(pattern, line) for pattern in keep):
            kept.append(line.rstrip())
            in_point = in_point or line.startswith("• ")
        elif kept and kept[-1] != "..." and (line.strip() or kept[-1]):
            kept[len(kept) - (not kept[-1]) :] = ["..." if line.strip() else ""]
    while kept and kept[-1] in ("...", ""):
        kept.pop()
    return kept


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def blocks_in(path: Path) -> dict[str, tuple[str, str]]:
    """Name -> (digest in the marker, text) of the blocks of a page."""
    return {name: (digest, text) for name, digest, text in BLOCK.findall(path.read_text(encoding="utf-8"))}


def write_block(path: Path, name: str, text: str) -> None:
    """Put a block's new text and its digest into its page."""
    page = path.read_text(encoding="utf-8")
    new = f"<!-- output: {name} {digest_of(text)} -->\n{text}<!-- /output -->"
    pattern = re.compile(rf"<!-- output: {re.escape(name)}(?: \S+)? -->\n.*?<!-- /output -->", re.DOTALL)
    if not pattern.search(page):
        raise SystemExit(f"{path} has no block {name}")
    path.write_text(pattern.sub(lambda _: new, page, count=1), encoding="utf-8")


def shape_of(text: str) -> set[str]:
    """The lines of a block without what varies from run to run: figures, bars, spaces, the order of rows."""
    lines = (re.sub(r"\s+", " ", BARS.sub("", NUMBER.sub("#", line))) for line in text.splitlines())
    bare = (re.sub(r"(# ?(B|KiB|MiB|GiB|s|ms|us|min|h)\b ?)+", "# ", line) for line in lines)
    return {re.sub(r"\s+", " ", line).strip() for line in bare} - {""}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="blocks to write; all without one")
    names = parser.parse_args().names
    blocks = all_blocks()
    if unknown := set(names) - set(blocks):
        raise SystemExit(f"no such block: {', '.join(sorted(unknown))}; there are {', '.join(blocks)}")
    for name in names or blocks:
        print(f"{name} ...", flush=True)
        write_block(ROOT / blocks[name].file, name, run_block(blocks[name]))


if __name__ == "__main__":
    main()
