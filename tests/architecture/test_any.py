"""How many annotations of function signatures contain `Any`? The count has a ceiling that may only be lowered.

`python tests/architecture/test_any.py` prints the count of every room. Foreign objects (what a user's job hands over)
count too: `object`, a Protocol or a type variable say more about them than `Any` does.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "memfit"
CEILING = 92


def annotations_of(tree: ast.AST) -> Iterator[ast.expr]:
    """The annotations of every parameter and every return value, nested functions and overloads included."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            given = node.args
            parameters = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
            yield from (each.annotation for each in parameters if each is not None and each.annotation is not None)
            if node.returns is not None:
                yield node.returns


def contains_any(annotation: ast.expr) -> bool:
    """Whether `Any` stands anywhere in an annotation, written as text or not."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval").body
    names = (node.id if isinstance(node, ast.Name) else getattr(node, "attr", "") for node in ast.walk(annotation))
    return "Any" in names


def count_any() -> Counter[str]:
    """Annotations with `Any` by file."""
    found: Counter[str] = Counter()
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found[path.relative_to(SOURCE).as_posix()] = sum(contains_any(each) for each in annotations_of(tree))
    return +found


def by_room(found: Counter[str]) -> Counter[str]:
    """The same by room."""
    rooms: Counter[str] = Counter()
    for name, number in found.items():
        rooms[name.split("/")[0] if "/" in name else "."] += number
    return rooms


def test_any_in_signatures_does_not_come_back():
    found = count_any()
    assert found.total() <= CEILING, f"give the new ones a type; by room: {by_room(found).most_common()}"


def test_the_count_sees_every_place_where_any_can_stand():
    text = "def f(a: Any, *b: list[Any], c: 'Any' = 1, **d: typing.Any) -> dict[str, Any]: ...\n"
    text += "async def g(x: Anything): ..."
    assert [contains_any(each) for each in annotations_of(ast.parse(text))] == [True] * 5 + [False]


if __name__ == "__main__":
    counted = count_any()
    for room, num in by_room(counted).most_common():
        print(f"{num:5d}  {room}")
    print(f"{counted.total():5d}  in all, in {len(counted)} files")
    for name, num in counted.most_common(40):
        print(f"{num:9d}  {name}")
