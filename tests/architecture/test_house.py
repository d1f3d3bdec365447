"""Does the code still stand as the house was drawn: arrows, no rings, heavy imports where their name says so?"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "memfit"
EVERYBODY = {"units", "errors", "version", "regular_file", "torch_support"}
MAY_IMPORT: dict[str, set[str]] = {
    "units": set(),
    "errors": set(),
    "version": set(),
    "regular_file": set(),
    "torch_support": set(),
    "records": set(),
    "inside": set(),
    "runfolder": {"records"},
    "job": {"records", "apply"},
    "measure": {"records", "runfolder", "inside"},
    "model": {"records", "measure.counters"},
    "apply": {"records", "model"},
    "profile": {"records", "model", "apply"},
    "predict": {"records", "job", "inside"},
    "plan": {"records"},
    "fit": {"records", "measure.counters", "model", "apply", "profile"},
    "study": {"records", "runfolder", "job", "measure", "predict"},
    "compare": {"records", "runfolder", "job", "measure", "predict"},
    "reproduce": {"records", "runfolder", "job", "plan", "study", "compare"},
    "explain": {"records"},
    "show": {"records"},
    "serve": {"records", "runfolder", "show"},
    "integrations": {"records", "inside", "measure", "fit", "show", "api"},
    "commands": {"api", "records", "show"},
    "__init__": {"api", "records"},
    "__main__": {"commands"},
}
MAY_IMPORT["api"] = set(MAY_IMPORT) - {"commands", "integrations", "__init__", "__main__"}
MAY_IMPORT["testing"] = {*MAY_IMPORT["api"], "api"}
INSTEAD = {
    "show": "pass a record instead; pictures never measure or decide",
    "plan": "planners are pure; pass a timeline",
    "commands": "call a function of api; a command only parses, calls and shows",
    "records": "records know nobody; move the deciding part to its room",
    "inside": "this runs in the user's process: standard library only, and torch where the user has it",
}
HEAVY = {
    "torch",
    "optuna",
    "matplotlib",
    "transformers",
    "lightning",
    "pytorch_lightning",
    "scipy",
    "polars",
    "sklearn",
    "dask",
    "distributed",
    "starlette",
    "uvicorn",
}
HEAVY_FOLDERS = {
    "model/": "torch",
    "profile/": "torch",
    "apply/": "torch",
    "fit/": "torch",
    "job/workloads/": "torch",
    "predict/observe/": "torch",
    "predict/fake/": "torch",
    "predict/phantom/in_child/": "torch",
    "show/figures/": "matplotlib",
}
"""Folders whose name is the licence; elsewhere the name of the file is."""
STANDARD_ONLY = (
    "records/files/layout.py",
    "records/run_parts/live.py",
    "runfolder/writer.py",
    "measure/sampler/",
    "measure/counters/",
    "inside/",
    "study/nni_shim/nni/",
)


def room_of(path: Path) -> str:
    relative = path.relative_to(SOURCE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def imports_of(path: Path) -> list[tuple[str, int, bool]]:
    """(module, line, inside a function or TYPE_CHECKING) for every import of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: list[tuple[str, int, bool]] = []

    def walk(node: ast.AST, late: bool) -> None:
        for child in ast.iter_child_nodes(node):
            inner = late or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                inner = True
            if isinstance(child, ast.Import):
                found.extend((alias.name, child.lineno, inner) for alias in child.names)
            elif isinstance(child, ast.ImportFrom) and child.level == 0 and child.module:
                if child.module == "memfit":
                    found.extend((f"memfit.{alias.name}", child.lineno, inner) for alias in child.names)
                else:
                    found.append((child.module, child.lineno, inner))
                    if child.module.startswith("memfit."):
                        found.extend((f"{child.module}.{alias.name}", child.lineno, inner) for alias in child.names)
            walk(child, inner)

    walk(tree, False)
    return found


def broken_arrows(paths: list[Path]) -> list[str]:
    problems = []
    for path in paths:
        room = room_of(path)
        for name, line, _ in imports_of(path):
            if not name.startswith("memfit."):
                continue
            target, floor = name.split(".")[1], ".".join(name.split(".")[1:3])
            if target == room or target in EVERYBODY or target not in MAY_IMPORT:
                continue
            if not {target, floor} & MAY_IMPORT.get(room, set()) and name.count(".") > 1:
                advice = INSTEAD.get(room, "pass a record, or join the two in api")
                problems.append(f"{path.relative_to(SOURCE)}:{line}: {room} may not import {target}: {advice}")
    return problems


def misplaced_heavy_imports(paths: list[Path]) -> list[str]:
    problems = []
    for path in paths:
        for name, line, _ in imports_of(path):
            top = name.split(".")[0]
            word = "torch" if top in {"torch"} else top.removeprefix("pytorch_")
            relative = path.relative_to(SOURCE).as_posix()
            allowed = {word for folder, word in HEAVY_FOLDERS.items() if relative.startswith(folder)}
            if top in HEAVY and word not in path.stem and word not in allowed:
                problems.append(
                    f"{relative}:{line}: imports {top}, but neither its name nor its folder says so; "
                    f"move that part to a file called {word}_*.py"
                )
    return problems


def printing_calls(paths: list[Path]) -> list[str]:
    """Where a file writes to the standard streams by itself."""
    problems = []
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, (ast.Name, ast.Attribute)):
                continue
            name = ast.unparse(node)
            if name in ("print", "click.echo", "sys.stdout", "sys.stderr", "write_text", "write_json"):
                problems.append(f"{path.relative_to(SOURCE)}:{node.lineno}: {name}: return a record; commands print it")
    return problems


def test_public_functions_return_records_and_print_nothing():
    assert printing_calls(sorted((SOURCE / "api").rglob("*.py"))) == []


def test_every_import_follows_an_arrow_of_the_house():
    assert broken_arrows(modules()) == []


def test_heavy_imports_stand_in_files_that_carry_their_name():
    assert misplaced_heavy_imports(modules()) == []


MOST_FILES = 17
"""In one folder; about a dozen is home. `commands` has a file per verb, `nni_shim` the files that NNI has."""


def crowded_folders(paths: list[Path]) -> list[str]:
    """Folders with more files than a reader takes in at a look."""
    folders = Counter(path.parent for path in paths if path.name != "__init__.py" and "nni_shim" not in path.parts)
    return [
        f"{folder.relative_to(SOURCE)}: {count} files; give it floors whose names tell the story"
        for folder, count in folders.items()
        if count > MOST_FILES and folder != SOURCE / "commands"
    ]


def test_no_folder_is_crowded():
    assert crowded_folders(modules()) == []
    assert crowded_folders([SOURCE / "plan" / f"a{number}.py" for number in range(MOST_FILES + 1)]) != []


def test_every_file_of_the_command_line_is_a_verb():
    from memfit.commands import VERBS

    assert {path.stem for path in (SOURCE / "commands").glob("*.py")} - {"__init__"} == set(VERBS)


def test_every_room_is_in_the_table():
    rooms = {room_of(path) for path in modules()}
    assert rooms <= set(MAY_IMPORT), f"unknown rooms {rooms - set(MAY_IMPORT)}: add them to the house and to this table"


def import_graph() -> dict[str, set[str]]:
    """Which files import which, imports inside functions and for type checking included."""
    names = {
        ".".join(("memfit", *p.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__"): p
        for p in modules()
        if "nni_shim" not in p.parts
    }
    return {name: {t for t, _, _ in imports_of(path) if t in names and t != name} for name, path in names.items()}


def ring_in(graph: dict[str, set[str]]) -> list[str]:
    """The names along one ring; nothing where there is none."""
    done: set[str] = set()

    def visit(name: str, trail: list[str]) -> list[str]:
        if name in trail:
            return [*trail[trail.index(name) :], name]
        if name in done:
            return []
        for target in sorted(graph[name]):
            ring = visit(target, [*trail, name])
            if ring:
                return ring
        done.add(name)
        return []

    return next((ring for name in sorted(graph) if (ring := visit(name, []))), [])


def test_no_files_import_each_other_in_a_ring_not_even_inside_functions():
    ring = ring_in(import_graph())
    assert not ring, f"import ring: {' -> '.join(ring)}; move what both need into a third file"


def test_a_planted_ring_is_found():
    assert ring_in({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


SAME_NAME_ON_PURPOSE = {"MemfitCallback", "MemfitFit"}
"""One for each trainer, imported from the file of that trainer."""


def test_no_two_public_classes_have_one_name():
    homes: dict[str, list[str]] = {}
    for path in modules():
        if "nni_shim" in path.parts:  # these have the names of NNI's own
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(path.relative_to(SOURCE).as_posix())
    twice = {name: files for name, files in homes.items() if len(files) > 1 and name not in SAME_NAME_ON_PURPOSE}
    assert twice == {}, f"rename one of each: {twice}"


def test_what_runs_in_the_job_or_the_sampler_needs_only_the_standard_library():
    allowed = set(sys.stdlib_module_names) | {"psutil", "torch", "memfit_inside"}
    problems = []
    for path in modules():
        relative = path.relative_to(SOURCE).as_posix()
        if not any(relative == rule or (rule.endswith("/") and relative.startswith(rule)) for rule in STANDARD_ONLY):
            continue
        for name, line, _ in imports_of(path):
            if name.split(".")[0] not in allowed and not name.startswith("memfit."):
                problems.append(f"{relative}:{line}: imports {name}")
    assert problems == []


@pytest.mark.parametrize(
    ("statement", "forbidden"),
    [
        ("import memfit", {"torch", "numpy", "click", "rich", "msgspec", "psutil"}),
        ("import memfit.measure.sampler.process", {"torch", "numpy", "click", "rich", "msgspec"}),
        ("import memfit.commands", {"torch", "numpy", "matplotlib", "rich"}),
    ],
)
def test_importing_loads_nothing_heavy(statement: str, forbidden: set[str]):
    code = f"{statement}\nimport sys\nprint(' '.join(sorted(m.split('.')[0] for m in sys.modules)))"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert loaded & forbidden == set()


def test_the_sampler_stays_small():
    """What it has loaded is the floor of the high-water mark of the job that it starts: pathlib alone is 0.8 MiB."""
    code = f"import sys; sys.path.insert(0, {str(SOURCE.parent)!r}); import memfit.measure.sampler.process\n"
    code += "print(*{'pathlib', 'dataclasses', 'inspect', 'ctypes'} & set(sys.modules))"
    command = [sys.executable, "-I", "-S", "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == []


def test_the_check_itself_catches_a_planted_violation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "show").mkdir()
    bad = tmp_path / "show" / "planted.py"
    bad.write_text("from memfit.measure import session\nimport torch\n")
    monkeypatch.setattr(sys.modules[__name__], "SOURCE", tmp_path)
    assert "show may not import measure: pass a record instead" in broken_arrows([bad])[0]
    assert "move that part to a file called torch_*.py" in misplaced_heavy_imports([bad])[0]
    bad.write_text("import click, sys\nclick.echo('a')\nsys.stdout.write('b')\nprint('c')\n")
    assert {line.split(": ")[1] for line in printing_calls([bad])} == {"click.echo", "sys.stdout", "print"}


def test_the_public_names_are_sorted_and_all_there():
    import memfit

    assert list(memfit.__all__) == sorted(memfit.__all__)
    assert all(getattr(memfit, name) is not None for name in memfit.__all__)
