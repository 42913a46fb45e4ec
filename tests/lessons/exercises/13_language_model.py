# %% solution-1: correct
def batch_gradient(grads, counts):
    total = int(counts.sum())
    return {n: sum(g * int(k) for g, k in zip(each, counts)) / total for n, each in grads.items()}

# %% solution-1: correct
def batch_gradient(grads, counts):
    share = counts.double().div(counts.sum()).cpu()
    return {
        name: (each.flatten(1).T @ share.to(each)).view(each.shape[1:])
        for name, each in grads.items()
    }

# %% solution-1: right shape, wrong values: four texts
def batch_gradient(grads, counts):  # each text alike
    return {name: each.mean(dim=0) for name, each in grads.items()}

# %% solution-1: wrong dtype: five texts, float64
# - g) for n, g
# + g).float() for n, g

# %% solution-1: not so yet: it changed given[0][0]
def batch_gradient(grads, counts):  # in place
    for each in grads.values():
        each.mul_((counts / counts.sum()).to(each).view(-1, *[1] * (each.dim() - 1)))
    return {name: each.sum(dim=0) for name, each in grads.items()}

# %% solution-2: correct
def token_scores(losses, params, direction):
    each = torch.func.jacrev(losses)(params)
    return sum((each[name] * direction[name]).flatten(1).sum(dim=1) for name in params)

# %% solution-2: correct
def token_scores(losses, params, direction):
    leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
    scores = []
    for loss in losses(leaves):
        grads = torch.autograd.grad(loss, list(leaves.values()), retain_graph=True)
        pairs = zip(grads, leaves, strict=True)
        scores.append(sum((g * direction[name]).sum() for g, name in pairs))
    return torch.stack(scores).detach()

# %% solution-2: wrong shape: 64 tokens: expected (64,), got ()
# - (direction,))[1]
# + (direction,))[1].mean()  # of the whole window

# %% solution-2: right shape, wrong values: 64 tokens
def token_scores(losses, params, direction):  # cosines
    each = torch.func.jacrev(losses)(params)
    rows = torch.cat([each[name].flatten(1) for name in params], dim=1)
    return F.normalize(rows) @ torch.cat([direction[name].flatten() for name in params])
