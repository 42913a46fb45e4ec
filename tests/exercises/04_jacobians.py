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


# %% solution-1: not so yet: it changed X in place
def label_saliency(model, X, labels):
    X.requires_grad_()
    return torch.autograd.grad(model(X).gather(1, labels[:, None]).sum(), X)[0]


# %% solution-2: right shape, wrong values
def gauss_newton_product(flat, probabilities, v):
    last = flat[..., -210:]
    inner = probabilities * (last @ v[-210:])
    weighted = inner - probabilities * inner.sum(dim=1, keepdim=True)
    product = torch.zeros_like(v)
    product[-210:] = torch.einsum("byp,by->p", last, weighted) / len(flat)
    return product


# %% solution-3: not so yet: it changed model
def last_layer_jacobians(model, X):
    model.fc1.requires_grad_(False)
    params = {name: parameter.detach() for name, parameter in model.fc2.named_parameters()}
    hidden = model.fc1(X.flatten(1)).relu()

    def compute_outputs(params, h):
        return functional_call(model.fc2, params, (h,))

    named = vmap(jacrev(compute_outputs), in_dims=(None, 0))(params, hidden)
    return torch.cat([part.flatten(2) for part in named.values()], dim=2)
