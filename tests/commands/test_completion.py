"""Do real shells complete verbs, options, choices and file names of memfit?"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BASH = """
source <(memfit completion bash)
words=($1)
[[ "$1" == *" " ]] && words+=("")
COMP_WORDS=("${words[@]}") COMP_CWORD=$((${#words[@]} - 1))
_memfit_completion memfit
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A `memfit` on the path that is the one under test."""
    tool = tmp_path / "bin" / "memfit"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\nexec {sys.executable} -m memfit "$@"\n')
    tool.chmod(0o755)
    return {**os.environ, "PATH": f"{tool.parent}:{os.environ['PATH']}"}


def in_shell(command: list[str], environment: dict[str, str]) -> list[str]:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_verbs_options_names_and_choices(environment: dict[str, str]):
    def complete(line: str) -> list[str]:
        return in_shell(["bash", "--norc", "-c", BASH, "bash", line], environment)

    assert complete("memfit me") == ["measure"]
    assert complete("memfit reproduce ") == ["edge", "hyperparameters", "offloading", "optimizers", "pipelining"]
    assert complete("memfit fit --bu") == ["--budget"]
    assert "chrome-trace" in complete("memfit export run --to ")


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_takes_the_script(environment: dict[str, str]):
    script = 'autoload -U compinit; compinit -u -D; eval "$(memfit completion zsh)"; print ${_comps[memfit]}'
    assert in_shell(["zsh", "-f", "-c", script], environment) == ["_memfit_completion"]
    asked = {**environment, "_MEMFIT_COMPLETE": "zsh_complete", "COMP_WORDS": "memfit rep", "COMP_CWORD": "1"}
    assert in_shell(["memfit"], asked)[:4] == ["plain", "report", "Write", "what"]


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_verbs(environment: dict[str, str]):
    script = "memfit completion fish | source; complete -C 'memfit me'"
    assert in_shell(["fish", "--no-config", "-c", script], environment)[0] == "measure"


def test_a_half_typed_former_spelling_completes_without_an_error(environment: dict[str, str]):
    half_typed = {"memfit fit --experiment --bu": 3, "memfit nonsense --x": 2, "memfit study paper-mnist -": 3}
    for words, index in half_typed.items():
        asked = {**environment, "_MEMFIT_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(index)}
        done = subprocess.run(["memfit"], env=asked, capture_output=True, text=True, timeout=60, check=False)
        assert done.stderr == ""
