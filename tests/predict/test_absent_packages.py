"""Does a trial of NNI run where NNI is not installed, with the script's own defaults?"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from argparse import Namespace

import pytest

from memfit.predict.sandbox.absent_packages import standing_alone


@pytest.mark.skipif(importlib.util.find_spec("nni") is not None, reason="NNI itself is installed")
def test_a_trial_gets_no_parameters_and_keeps_its_own(monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "nni"]:  # memfit's own, of another test
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if "nni_shim" not in folder])
    said: list[str] = []
    with standing_alone(lambda kind, text: said.append(text)):
        nni, utils = importlib.import_module("nni"), importlib.import_module("nni.utils")
        defaults = Namespace(lr=0.1)
        assert utils.merge_parameter(defaults, nni.get_next_parameter()) is defaults
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("nni.nas")
    assert len(said) == 1
    assert not {"nni", "nni.utils"} & set(sys.modules)
