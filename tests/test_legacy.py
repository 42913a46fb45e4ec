"""The stand-in for functorch equals functorch, as long as torch still has one to compare with."""

import re
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
every_model = pytest.mark.parametrize("name", NAMES.split("|"))


def described(tensors: tuple[Tensor, ...]) -> list[tuple[object, ...]]:
    return [(type(t), t.dtype, t.requires_grad, t.is_leaf, t.tolist()) for t in tensors]


@pytest.mark.parametrize("disable_autograd_tracking", [False, True])
@every_model
def test_make_functional_with_buffers(name, disable_autograd_tracking):
    model, data = (case := make(name)).model, case.data
    before = Snapshot(model)
    results = [
        module.make_functional_with_buffers(model, disable_autograd_tracking)
        for module in (torchs, legacy)
    ]
    (fmodel, params, buffers), (ours, our_params, our_buffers) = results
    assert ours.param_names == fmodel.param_names
    assert ours.buffer_names == fmodel.buffer_names
    assert {type(state) for state in (params, buffers, our_params, our_buffers)} == {tuple}
    assert described(our_params) == described(params)
    assert described(our_buffers) == described(buffers)
    outputs = fmodel(params, buffers, data)
    assert torch.equal(ours(our_params, our_buffers, data), outputs)
    assert described(our_buffers) == described(buffers), "a forward writes into what it is given"
    assert outputs.requires_grad != disable_autograd_tracking
    for stateless in (fmodel.stateless_model, ours.stateless_model):
        tensors = *stateless.parameters(), *stateless.buffers()
        assert {tensor.device.type for tensor in tensors} == {"meta"}, "a call left something"
    with torch.no_grad():
        for tensor in (*our_params, *our_buffers):
            tensor.add_(1)
    assert before.changes() == [], "copies share nothing with the model"
    if not buffers:
        results = [module.make_functional(model) for module in (torchs, legacy)]
        (fmodel, params), (ours, our_params) = results
        assert described(our_params) == described(params)
        assert torch.equal(ours(our_params, data), fmodel(params, data))


def test_the_mode_is_that_of_the_moment():
    model = nn.Sequential(nn.Linear(3, 2), nn.Dropout())
    for module in (torchs, legacy):
        fmodel, *state = module.make_functional_with_buffers(model.train())
        model.eval()
        assert fmodel.stateless_model.training
        fmodel.eval()
        outputs = fmodel(*state, torch.ones(1, 3))
        assert torch.equal(outputs, model(torch.ones(1, 3)))


MIXED_MODES = [nn.Linear(3, 2), nn.Linear(3, 2).eval()]
REFUSED = {
    "buffers": lambda module: module.make_functional(nn.BatchNorm1d(2)),
    "no model": lambda module: module.combine_state_for_ensemble([]),
    "modes": lambda module: module.combine_state_for_ensemble(MIXED_MODES),
    "classes": lambda module: module.combine_state_for_ensemble([nn.ReLU(), nn.Tanh()]),
    "both": lambda module: module.combine_state_for_ensemble([nn.ReLU(), nn.Tanh().eval()]),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED.keys())
def test_errors_are_those_of_functorch(call):
    with pytest.raises(RuntimeError) as theirs:
        call(torchs)
    with pytest.raises(RuntimeError, match=f"^{re.escape(str(theirs.value))}$"):
        call(legacy)


@pytest.mark.parametrize("name", ["linear", "frozen", "batch norm eval", "buffer not persistent"])
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
    if not name.startswith("buffer"):
        outputs = [torch.func.vmap(f, (0, 0, None))(p, b, data) for f, p, b in results]
        assert torch.equal(*outputs)
        assert torch.allclose(outputs[1], torch.stack([model(data) for model in models]))


def test_functorch_is_torchs_own_while_it_is_there(monkeypatch):
    assert legacy.functorch() is torchs
    monkeypatch.setitem(sys.modules, "functorch", None)  # what an uninstalled module looks like
    assert legacy.functorch().make_functional is legacy.make_functional
    emptied = types.ModuleType("functorch")  # what torch may leave of it
    monkeypatch.setitem(sys.modules, "functorch", emptied)
    assert legacy.functorch().make_functional is legacy.make_functional
