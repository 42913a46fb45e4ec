# %% solution-1: correct
def sample_norms(grads):
    return torch.cat([grad.flatten(1) for grad in grads.values()], dim=1).norm(dim=1)

# %% solution-1: correct
SQUARED = "bp,bp->b"  # of this cell, and `einsum` rounds more than the others

def sample_norms(grads):
    flat = [grad.flatten(1) for grad in grads.values()]
    return sum(torch.einsum(SQUARED, each, each) for each in flat).sqrt()

# %% solution-1: right shape, wrong values
def sample_norms(grads):  # the sum over parameters, not all together
    return sum(grad.flatten(1).norm(dim=1) for grad in grads.values())

# %% solution-1: wrong shape: norms: expected
def sample_norms(grads):  # the norm of all samples together
    return sum((grad**2).sum() for grad in grads.values()).sqrt()

# %% solution-2: correct
def clipped_mean(grads, clipping_norm):
    norms = sample_norms(grads)
    mean = {name: torch.zeros_like(grad[0]) for name, grad in grads.items()}
    for index, norm in enumerate(norms.tolist()):
        for name, grad in grads.items():
            mean[name] += grad[index] * (min(1.0, clipping_norm / norm) / len(norms))
    return mean

# %% solution-2: correct
# as Opacus writes it
# - (clipping_norm / squares.sqrt())
# + (clipping_norm / (squares.sqrt() + 1e-6))

# %% solution-2: right shape, wrong values
# samples below the limit do not stay as they are
# - (clipping_norm / squares.sqrt()).clamp(max=1.0)
# + clipping_norm / squares.sqrt()

# %% solution-2: right shape, wrong values
# each parameter by itself, not all together
# - torch.tensordot(factors, gradient, dims=1)
# + torch.tensordot((clipping_norm / gradient.flatten(1).norm(dim=1)).clamp(max=1.0), gradient, 1)

# %% solution-2: right shape, wrong values
def clipped_mean(grads, clipping_norm):  # the mean is clipped, not the samples
    mean = {name: grad.mean(dim=0) for name, grad in grads.items()}
    norm = sum((grad**2).sum() for grad in mean.values()).sqrt()
    return {name: grad * (clipping_norm / norm).clamp(max=1.0) for name, grad in mean.items()}

# %% solution-2: wrong shape
def clipped_mean(grads, clipping_norm):
    return grads

# %% solution-2: not so yet: it changed grads
# - torch.tensordot(factors, gradient, dims=1)
# + gradient.mul_(factors.view(-1, *[1] * (gradient.dim() - 1))).sum(dim=0)

# %% solution-3: correct
def suspects(model, last_layer, images, labels, count):
    params = {name: model.get_parameter(name).detach() for name in last_layer}

    def compute_loss(params, image, label):
        logits = torch.func.functional_call(model, params, (image[None],))
        return F.cross_entropy(logits, label[None])

    compute = torch.func.vmap(torch.func.grad(compute_loss), in_dims=(None, 0, 0))
    return sample_norms(compute(params, images, labels)).sort(descending=True).indices[:count]

# %% solution-3: correct
def suspects(model, last_layer, images, labels, count):
    from helpers import gradients

    grads = gradients.loop_gradients(model, F.cross_entropy, images, labels, wrt=last_layer)
    return sample_norms(grads).topk(count).indices

# %% solution-3: right shape, wrong values
# without the bias
# - in torch.autograd.grad(loss, last):
# + in torch.autograd.grad(loss, last[:1]):

# %% solution-3: right shape, wrong values
# the sum of two norms, not the norm of both together
# - squares + gradient.square().sum()
# + squares + gradient.norm()
# - squares.sqrt()
# + squares

# %% solution-3: right shape, wrong values
# the right ones, in the order of the data
# - .topk(count).indices
# + .topk(count).indices.sort().values

# %% solution-3: right shape, wrong values
# the last two of the model, whatever was asked for
# - [model.get_parameter(name) for name in last_layer]
# + [*model.parameters()][-2:]

# %% solution-3: wrong dtype
# norms, not indices
# - .topk(count).indices
# + .topk(count).values

# %% solution-3: not so yet: only these two parameters are differentiated
def suspects(model, last_layer, images, labels, count):
    norms = []
    for image, label in zip(images, labels):
        model.zero_grad()
        F.cross_entropy(model(image[None]), label[None]).backward()
        norms.append(sum((model.get_parameter(name).grad**2).sum() for name in last_layer))
    model.zero_grad()
    return torch.stack(norms).topk(count).indices
