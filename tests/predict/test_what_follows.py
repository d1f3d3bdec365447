"""Is anything silent that a job does later: another training, a branch, a call behind its loop? Never."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from memfit.job.description import describe_job  # noqa: E402
from memfit.predict.child.messages import UNSEEN, TraceReply, TraceRequest  # noqa: E402
from memfit.predict.fake import steps  # noqa: E402
from memfit.predict.fake.child_main import answer  # noqa: E402
from memfit.predict.fake.probe.in_process import ProbesHere  # noqa: E402
from memfit.predict.fake.probe.real_reference import real_script_peak  # noqa: E402
from memfit.predict.levels.liveness import peak_of  # noqa: E402
from memfit.predict.observe.garbage_collection import GarbageCollection  # noqa: E402
from memfit.predict.observe.later.lines_that_ran import LinesThatRan  # noqa: E402
from memfit.predict.observe.later.recorded_models import RecordedModels  # noqa: E402
from memfit.predict.observe.later.rounds_by_value import rounds_by_value  # noqa: E402
from memfit.predict.observe.later.what_follows import Later, what_follows  # noqa: E402
from memfit.predict.observe.source_files import kind_of_file  # noqa: E402
from memfit.predict.options import PredictOptions  # noqa: E402

RAN = LinesThatRan()
FOUND: list[Later | None] = []
"""What the job under test asks for itself, at its `step()`."""


def step(model: Any = None) -> None:
    """Stands for an update: remembers the line, as a tensor that is made there would, and asks what follows."""
    RAN.note(sys._getframe(1))
    FOUND.append(what_follows(RAN))


def ran() -> None:
    """Stands for a tensor that is made."""
    RAN.note(sys._getframe(1))


@pytest.fixture
def job(tmp_path: Path) -> Any:
    """Runs a script of the user's own and gives the line that was named at its last update, 0 for none."""

    def run(text: str) -> int:
        RAN._seen.clear()
        FOUND.clear()
        path = tmp_path / "train.py"
        start = "import torch\nfrom torch import nn\nnet = nn.Linear(2, 2)\nx = torch.ones(1, 2)\n"
        path.write_text(start + textwrap.dedent(text))
        exec(compile(path.read_text(), str(path), "exec"), {"step": step, "ran": ran, "__name__": "train"})
        last = FOUND[-1]
        return 0 if last is None else int(last.line.partition(":")[2]) - start.count("\n")

    return run


LISTED = {
    "behind the inner loop": ("for epoch in range(1):\n    for k in range(3):\n        step()\n    y = net(x)\n", 4),
    "a function with a global model": ("def show():\n    return net(x)\nstep()\nshow()\n", 4),
    "a function that the loop calls, with other arguments": (
        "def loss(m, x):\n    ran()\n    return m(x)\nfor k in range(2):\n    loss(net, x)\n    step()\n"
        "loss(net, x + 1)\n",
        7,
    ),
    "forward by its name": ("step()\nnet.forward(x)\n", 2),
    "an element of a list": ("nets = [net]\nstep()\nnets[0](x)\n", 3),
    "eval() and called": ("step()\nnet.eval()(x)\n", 2),
    "passed on": ("def a(m):\n    return m(x)\ndef b(m):\n    return a(m)\nstep()\nb(net)\n", 6),
    "made behind the loop": ("class Net(nn.Linear):\n    pass\nstep()\nbest = Net(2, 2)\nbest(x)\n", 5),
    "held by an object": (
        "class Run:\n    def __init__(self):\n        self.net = net\n    def show(self):\n        self.net(x)\n"
        "run = Run()\nstep()\nrun.show()\n",
        8,
    ),
    "a model for every round": (
        "for k in range(3):\n    ran()\n    kept = nn.Linear(2, 2)\n    for s in range(2):\n        step()\n",
        3,
    ),
    "a model and its optimizer for every round": (
        "def build():\n    return nn.Linear(2, 2), 1\nfor k in range(3):\n    ran()\n    kept, rate = build()\n"
        "    for s in range(2):\n        step()\n",
        5,
    ),
    "a model for every call of a comprehension": (
        "def fold(k):\n    ran()\n    kept = nn.Linear(2, 2)\n    for s in range(2):\n        step()\n"
        "[fold(k) for k in range(3)]\n",
        3,
    ),
    "a model as an attribute for every round": (
        "class Run:\n    pass\nrun = Run()\nfor k in range(3):\n    ran()\n    run.model = nn.Linear(2, 2)\n"
        "    for s in range(2):\n        step()\n",
        6,
    ),
    "a model in a list for every round": (
        "nets = []\nfor k in range(3):\n    ran()\n    nets.append(nn.Linear(2, 2))\n    for s in range(2):\n"
        "        step()\n",
        4,
    ),
    "a model under a key for every round": (
        "nets = {}\nfor k in range(3):\n    ran()\n    nets[k] = nn.Linear(2, 2)\n    for s in range(2):\n"
        "        step()\n",
        4,
    ),
    "a list of models for every round": (
        "for k in range(3):\n    ran()\n    nets = [nn.Linear(2, 2) for _ in range(2)]\n    for s in range(2):\n"
        "        step()\n",
        3,
    ),
    "an object that makes its model, for every round": (
        "class Run:\n    def __init__(self):\n        self.net = nn.Linear(2, 2)\nfor k in range(3):\n    ran()\n"
        "    kept = Run()\n    for s in range(2):\n        step()\n",
        6,
    ),
    "a method that makes the model again": (
        "class Run:\n    def reset(self):\n        ran()\n        self.net = nn.Linear(2, 2)\nrun = Run()\n"
        "for k in range(3):\n    run.reset()\n    for s in range(2):\n        step()\n",
        7,
    ),
    "a model without a name for every round": (
        "def fit(m):\n    for s in range(2):\n        step()\nfor k in range(3):\n    fit(nn.Linear(2, 2))\n",
        5,
    ),
    "a copy of the model kept in every round": (
        "import copy\nkept = []\nfor k in range(3):\n    for s in range(2):\n        step()\n    ran()\n"
        "    kept.append(copy.deepcopy(net))\n",
        7,
    ),
    "gradients of a function that is made later": (
        "step()\ndef loss(p):\n    return p.sum()\ntorch.vmap(torch.func.grad(loss))(x)\n",
        4,
    ),
    "a function that runs the model is handed on": (
        "def show(x):\n    return net(x)\nstep()\nlist(map(show, [x]))\n",
        4,
    ),
    "finally": ("try:\n    step()\nfinally:\n    net(x)\n", 4),
    "a branch of the loop": ("for k in range(3):\n    step()\n    if k == 100:\n        net(x)\n", 4),
    "a branch of a function that a loop calls": (
        "def once(k):\n    if k == 9:\n        net(x)\n    step()\nfor k in range(2):\n    once(k)\n",
        3,
    ),
    "parameters are freed later": (
        "for k in range(3):\n    if k == 100:\n        for p in net.parameters():\n            p.requires_grad = True\n"
        "    step()\n",
        4,
    ),
    "an average is made later": (
        "from torch.optim.swa_utils import AveragedModel\nfor k in range(3):\n    step()\n    if k > 9:\n"
        "        a = AveragedModel(net)\n",
        5,
    ),
    "a larger batch from a step on": (
        "size = 8\nfor k in range(3):\n    torch.ones(size); ran()\n    if k == 100:\n        size = 64\n    step()\n",
        5,
    ),
    "a size that doubles": (
        "size = 8\nfor k in range(3):\n    torch.ones(2, size)\n    if k % 100 == 99:\n        size *= 2\n    step()\n",
        5,
    ),
    "a switch of the model": (
        "for k in range(3):\n    if k == 100:\n        net.with_auxiliary = True\n    step()\n",
        3,
    ),
    "a setting of the data": (
        "class crop:\n    size = 8\nfor k in range(3):\n    torch.ones(crop.size)\n    step()\n"
        "    if k > 9:\n        crop.size = 16\n",
        7,
    ),
    "more steps are accumulated": (
        "every = 1\nfor k in range(3):\n    if k > 9:\n        every = 8\n"
        "    if (k + 1) % every == 0:\n        step()\n",
        4,
    ),
    "another training": ("def fit(m):\n    torch.optim.SGD(m.parameters())\nstep()\nfit(net)\n", 4),
    "another optimizer": ("step()\nsecond = torch.optim.SGD(net.parameters())\n", 2),
    "a loop over other widths": ("for width in (4, 8):\n    if width == 4:\n        step()\n", 1),
    "a loop over names in a list": ("kinds = ['a', 'b']\nfor kind in kinds:\n    if kind == 'a':\n        step()\n", 2),
}


@pytest.mark.parametrize("case", LISTED)
def test_what_may_run_a_model_later_is_named_by_its_line(job: Any, case: str):
    text, line = LISTED[case]
    assert job(text) == line


HARMLESS = {
    "a function that makes one step": "def once():\n    step()\n    return 1\nfor k in range(3):\n    once()\n",
    "a model that is moved and wrapped in every round": "for k in range(2):\n    ran()\n    same = net.to('cpu')\n"
    "    outer = nn.DataParallel(net); ran()\n    for s in range(2):\n        step()\n",
    "a loss that is made in every round": "def fit(m):\n    loss = nn.MSELoss()\n    ran()\n    for s in range(2):\n"
    "        step()\nfor k in range(2):\n    fit(net)\n    print(nn.MSELoss())\n",
    "an object around the model in every round": "class Run:\n    def __init__(self, m):\n        self.net = m\n"
    "for k in range(2):\n    ran()\n    run = Run(net)\n    for s in range(2):\n        step()\n",
    "saving and counting": "step()\ntorch.save(net.state_dict(), '/dev/null')\n"
    "print(sum(p.numel() for p in net.parameters()))\n",
    "a function that is never called": "step()\ndef later():\n    return net(x)\n",
    "behind a return": "def main():\n    step()\n    return\n    net(x)\nmain()\n",
    "a setting that is off": "class args:\n    test = False\nstep()\nif args.test:\n    net(x)\n",
    "another mode": "mode = 'fit'\nstep()\nif mode == 'gan':\n    net(x)\n",
    "a loss without parameters": "loss = nn.MSELoss()\nstep()\nprint(loss(x, x))\n",
    "the same rounds": "for size in (4, 4):\n    step()\n",
    "the last of the values": "for width in (4, 8):\n    step()\n",
    "numbers in a range": "for epoch in range(3):\n    step()\n",
    "the best so far": "best = 0\nfor k in range(3):\n    step()\n    found = k\n    if found > best:\n"
    "        best, when = found, k\n        print(best, when)\n",
    "a rate that falls": "rate = 0.1\nfor k in range(3):\n    torch.ones(2).mul(rate)\n    if k > 9:\n"
    "        rate = 0.01\n    step()\n",
    "a count that begins again": "count = 1\nfor k in range(3):\n    torch.ones(count)\n    if k > 9:\n"
    "        count = 0\n    step()\n",
    "what is set already": "size = 8\nfor k in range(3):\n    torch.ones(size)\n    if k > 9:\n"
    "        size = 8\n    step()\n",
    "when to stop": "stop = False\nfor k in range(3):\n    step()\n    if k > 9:\n        stop = True\n"
    "    if stop:\n        break\n",
    "an error": "step()\nif x.sum() > 9:\n    net(x)\n    raise ValueError\n",
}


@pytest.mark.parametrize("case", HARMLESS)
def test_what_holds_nothing_new_is_not_named(job: Any, case: str):
    assert job(HARMLESS[case]) == 0


def test_no_property_of_the_job_is_evaluated(job: Any):
    text = "class Run:\n    @property\n    def show(self):\n        raise SystemExit\nrun = Run()\nstep()\nrun.show()\n"
    with pytest.raises(SystemExit):
        job(text)
    assert FOUND == [None], "the script's own line raises it, not the question"


def test_a_dictionary_of_names_that_the_job_holds_stays_as_it_was(job: Any):
    text = "def main(width=3):\n    kept = locals()\n    big = net(x)\n    step()\n"
    job(text + "    assert sorted(kept) == ['width'], kept\nmain()\n")


# ---- whole scripts ---------------------------------------------------------------------------------------------------

NETS = """
import torch
from torch import nn
def net(width):
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
def train(model, num_steps):
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(num_steps):
        optimizer.zero_grad()
        model(torch.randn(32, 64)).sum().backward()
        optimizer.step()
"""
LATER_TRAININGS = {
    "a larger model": "train(net(256), 60)\ntrain(net(2048), 9)\n",
    "a loop over widths": "for width in (64, 256, 2048):\n    train(net(width), 40)\n",
    "models that are kept": "kept = []\nfor k in range(4):\n    kept.append(net(512))\n    train(kept[-1], 40)\n",
    "a model for every round": """
for k in range(4):
    model = net(512)
    train(model, 40)
""",
    "one epoch over a loader": """
from torch.utils.data import DataLoader
def epoch(model):
    optimizer = torch.optim.Adam(model.parameters())
    for x in DataLoader([torch.randn(256, 64) for _ in range(8)], batch_size=None):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
epoch(net(128))
epoch(net(4096))
""",
    "one epoch over a loader, collecting gradients": """
from torch.utils.data import DataLoader
def epoch(model):
    optimizer = torch.optim.Adam(model.parameters())
    for k, x in enumerate(DataLoader([torch.randn(256, 64) for _ in range(20)], batch_size=None)):
        model(x).sum().backward()
        if k % 5 == 4:
            optimizer.step()
            optimizer.zero_grad()
epoch(net(128))
epoch(net(4096))
""",
    "one epoch over a loader, updated by hand": """
from torch.utils.data import DataLoader
def epoch(model):
    moments = {}
    for x in DataLoader([torch.randn(256, 64) for _ in range(8)], batch_size=None):
        model.zero_grad()
        model(x).sum().backward()
        with torch.no_grad():
            for p in model.parameters():
                moment = moments.setdefault(p, torch.zeros_like(p))
                assert p.grad is not None
                moment.mul_(0.9).add_(p.grad)
                p.sub_(0.1 * moment)
epoch(net(128))
epoch(net(4096))
""",
    "updates without an optimizer": """
train(net(128), 40)
model = net(1024)
for step in range(40):
    model.zero_grad()
    model(torch.randn(64, 64)).sum().backward()
    gradients = [p.grad for p in model.parameters()]
    assert all(gradient is not None for gradient in gradients)
    with torch.no_grad():
        for p, gradient in zip(model.parameters(), gradients):
            p.sub_(gradient, alpha=0.1)
""",
    "parameters that are freed": """
backbone, head = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 128)), nn.Linear(128, 10)
for p in backbone.parameters():
    p.requires_grad = False
optimizer = torch.optim.Adam(head.parameters())
for epoch in range(6):
    if epoch == 3:
        for p in backbone.parameters():
            p.requires_grad = True
        optimizer.add_param_group({"params": backbone.parameters()})
    for step in range(12):
        optimizer.zero_grad()
        head(backbone(torch.randn(32, 64))).sum().backward()
        optimizer.step()
""",
}


def predicted(folder: Path, text: str) -> TraceReply:
    (folder / "train.py").write_text(text)
    (folder / "scratch").mkdir()
    job = describe_job(str(folder / "train.py"), {}, ())
    scratch = str(folder / "scratch")
    request = TraceRequest(job=job, device="cpu", options=PredictOptions(num_steps=3), scratch_folder=scratch)
    reply = answer(request, ProbesHere())
    assert isinstance(reply, TraceReply), reply
    return reply


@pytest.mark.slow
@pytest.mark.parametrize("case", LATER_TRAININGS)
def test_a_later_training_is_reached_and_counted(tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(steps, "PASS_AFTER_SECONDS", 0.0)
    reply = predicted(tmp_path, NETS + LATER_TRAININGS[case])
    real_bytes = real_script_peak(str(tmp_path / "train.py"), (), sys.maxsize)
    assert abs(peak_of(reply.timeline, "cpu")[0] - real_bytes) <= 64
    assert [a.text for a in reply.assumptions if a.kind == UNSEEN] == []


@pytest.mark.slow
def test_a_later_training_that_is_not_reached_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(steps, "LEAST_TO_EVALUATION_SECONDS", 0.0)
    monkeypatch.setattr(steps, "TO_EVALUATION_SHARE", 0.0)
    reply = predicted(tmp_path, NETS + "train(net(256), 100_000)\ntrain(net(2048), 9)\n")
    assert [a for a in reply.assumptions if a.kind == UNSEEN and "train.py:13" in a.text]


IN_CYCLES = """
for k in range(3):
    model = net(512)
    model.itself = [model]
    train(model, 9)
    {frees}
    junk = [[] for _ in range(200_000)]  # the collector comes by
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_asked_for", [False, True])
def test_what_the_collector_frees_at_a_moment_of_its_own_is_listed(tmp_path: Path, is_asked_for: bool):
    frees = "del model; import gc; gc.collect()" if is_asked_for else "del model"
    reply = predicted(tmp_path, NETS + IN_CYCLES.format(frees=frees))
    listed = [a.text for a in reply.assumptions if a.kind == UNSEEN and "reference cycles" in a.text]
    assert bool(listed) is not is_asked_for


def test_a_few_bytes_in_cycles_are_not_worth_saying():
    live = iter((128, 0, 1_000_000, 1_000_000))
    collector = GarbageCollection(lambda: next(live))
    for phase in ("start", "stop", "start", "stop"):
        collector._noticed(phase, {})
    assert not collector.text


def test_what_passes_the_band_of_the_figures_in_cycles_is_said():
    """Half of a percent: states of earlier optimizers that were still there in a real run."""
    live = iter((1_000_000, 995_000))
    collector = GarbageCollection(lambda: next(live))
    for phase in ("start", "stop"):
        collector._noticed(phase, {})
    assert "4.88 KiB" in collector.text


def test_what_the_collector_frees_is_said_with_the_most_it_freed():
    live = iter((100, 90, 4096, 0))
    collector = GarbageCollection(lambda: next(live))
    for phase in ("start", "stop", "start", "stop"):
        collector._noticed(phase, {})
    assert "4.00 KiB" in collector.text


def test_packages_installed_into_a_folder_of_any_name_are_not_the_user_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """`pip install --target`: the loops of such a library are not those of the script."""
    for folder in ("packages", "project"):
        monkeypatch.syspath_prepend(str(tmp_path / folder))
        (tmp_path / folder / "library").mkdir(parents=True)
    (tmp_path / "packages" / "library-1.0.dist-info").mkdir()
    kinds = [kind_of_file(str(tmp_path / folder / "library" / "core.py")) for folder in ("packages", "project")]
    assert kinds == [1, 0]


STEPS = """
class Agent:
    def play(self, engine, ask):
        self.choose(ask)
        state, done = self.move()
        {collects}
        if done:
            {stops}
    def choose(self, ask):
        self.asked = ask()
    def move(self):
        return 1, True
"""


@pytest.mark.parametrize(
    ("collects", "stops", "is_found"),
    [
        ("self.rewards.append(state)", "engine.terminate_epoch()", True),
        ("self.rewards.append(state)", "self.total = 0", False),
        ("self.total = state", "engine.terminate_epoch()", False),
    ],
)
def test_a_library_may_go_round_until_an_action_says_so(tmp_path: Path, collects: str, stops: str, is_found: bool):
    """As ignite's engine plays an episode: its loop is not the user's, one move is."""
    path = tmp_path / "agent.py"
    path.write_text(STEPS.format(collects=collects, stops=stops))
    mine: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), mine)
    library: dict[str, Any] = {}
    text = "def run(step, engine, ask):\n    for _ in range(1):\n        step(engine, ask)\n"
    exec(compile(text, "/lib/site-packages/loops/engine.py", "exec"), library)
    found: list[str | None] = []
    agent = mine["Agent"]()
    agent.rewards = []
    engine = SimpleNamespace(terminate_epoch=lambda: None)
    library["run"](agent.play, engine, lambda: found.append(rounds_by_value(sys._getframe(1))))
    assert found == (["agent.py:3 (a library's)"] if is_found else [None])


def test_recorded_models_live_on_beside_the_next_training():
    """TorchScript's records hold them in reference cycles until the collector comes by."""
    recorded, model = RecordedModels(), torch.nn.Linear(100, 100)
    recorded.training_begins()
    recorded.recorded(model)
    assert not recorded.text(0)
    del model
    assert not recorded.text(0)  # given up at the end: nothing is made after it
    recorded.training_begins()
    assert "up to 78.9 KiB" in recorded.text(1e4)
    assert not recorded.text(1e6)
