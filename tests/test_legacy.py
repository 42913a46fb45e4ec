"""The stand-in for functorch equals functorch, as long as torch still has one to compare with."""

import sys
import types

import pytest
import torch
from torch import Tensor, nn

from helpers import legacy
from tests.support.snapshot import Snapshot
from tests.support.zoo import make

torchs = pytest.importorskip("functorch")
if not hasattr(torchs, "make_functional"):
    pytest.skip("this torch has no legacy functorch", allow_module_level=True)

pytestmark = [
    pytest.mark.filterwarnings("ignore:We've integrated functorch:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning"),
]
NAMES = "scalars|tied weight|frozen|buffer in place|buffer not persistent|lstm deep|weight norm"


def described(tensors: tuple[Tensor, ...]) -> list[tuple[object, ...]]:
    return [(type(t), t.dtype, t.requires_grad, t.is_leaf, t.tolist()) for t in tensors]


@pytest.mark.parametrize("name", NAMES.split("|"))
def test_make_functional_with_buffers(name):
    model, data = (case := make(name)).model, case.data
    before = Snapshot(model)
    results = [
        module.make_functional_with_buffers(model, name == "frozen") for module in (torchs, legacy)
    ]
    (fmodel, params, buffers), (ours, our_params, our_buffers) = results
    assert ours.param_names == fmodel.param_names
    assert ours.buffer_names == fmodel.buffer_names
    assert described(our_params) == described(params)
    assert described(our_buffers) == described(buffers)
    outputs = fmodel(params, buffers, data)
    assert torch.equal(ours(our_params, our_buffers, data), outputs)
    assert described(our_buffers) == described(buffers), "a forward writes into what it is given"
    with torch.no_grad():
        for tensor in (*our_params, *our_buffers):
            tensor.add_(1)
    assert before.changes() == [], "copies share nothing with the model"
    if not buffers:
        results = [module.make_functional(model) for module in (torchs, legacy)]
        (fmodel, params), (ours, our_params) = results
        assert described(our_params) == described(params)
        assert torch.equal(ours(our_params, data), fmodel(params, data))


def test_errors_are_those_of_functorch():
    for models in ([], [nn.Linear(3, 2), nn.Linear(3, 2).eval()], [nn.ReLU(), nn.Tanh()]):
        with pytest.raises(RuntimeError) as theirs:
            torchs.combine_state_for_ensemble(models)
        with pytest.raises(RuntimeError, match=str(theirs.value)):
            legacy.combine_state_for_ensemble(models)


@pytest.mark.parametrize("name", ["frozen", "batch norm eval"])
def test_combine_state_for_ensemble(name):
    models = [make(name).model for _ in range(3)]
    for index, model in enumerate(models):
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.data.add_(index)
    data = make(name).data
    results = [module.combine_state_for_ensemble(models) for module in (torchs, legacy)]
    (fmodel, params, buffers), (ours, our_params, our_buffers) = results
    assert ours.param_names == fmodel.param_names
    assert described(our_params) == described(params)
    assert described(our_buffers) == described(buffers)
    outputs = [torch.func.vmap(f, (0, 0, None))(p, b, data) for f, p, b in results]
    assert torch.equal(*outputs)
    assert torch.allclose(outputs[1], torch.stack([model(data) for model in models]))


def test_functorch_is_torchs_own_while_it_is_there(monkeypatch):
    assert legacy.functorch() is torchs
    monkeypatch.setitem(sys.modules, "functorch", None)  # what an uninstalled module looks like
    assert legacy.functorch().make_functional is legacy.make_functional
    monkeypatch.setitem(sys.modules, "functorch", types.ModuleType("functorch"))  # or emptied
    assert legacy.functorch().make_functional is legacy.make_functional
