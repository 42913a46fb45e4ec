# Wrong answers: the id of the solution that each stands for, and the verdict it gets.

# %% solution-1: right shape, wrong values
def label_saliency(model, X, labels):
    X = X.clone().requires_grad_()
    return torch.autograd.grad(model(X).sum(), X)[0]


# %% solution-1: wrong shape
def label_saliency(model, X, labels):
    X = X.clone().requires_grad_()
    return torch.autograd.grad(model(X).gather(1, labels[:, None]).sum(), X)[0].flatten(1)


# %% solution-2: right shape, wrong values
def gauss_newton_product(flat, probabilities, v):
    return torch.einsum("byp,by->p", flat, probabilities * (flat @ v)) / len(flat)


# %% solution-3: not so yet: the peak is below a tenth
def last_layer_jacobians(model, X):
    params = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def compute_outputs(params, x):
        return functional_call(model, params, (x.unsqueeze(0),)).squeeze(0)

    named = vmap(jacrev(compute_outputs), in_dims=(None, 0))(params, X)
    return torch.cat([named[n].flatten(2) for n in ("fc2.weight", "fc2.bias")], dim=2)


# %% solution-3: wrong shape
def last_layer_jacobians(model, X):
    return torch.zeros(len(X), 210)
