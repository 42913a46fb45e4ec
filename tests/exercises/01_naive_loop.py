# Wrong answers: the id of the solution that each stands for, and the verdict it gets.

# %% solution-1: wrong shape: gradients['conv1.weight']: expected
def lean_sample_grads(images, labels):
    return dict(zip(trained_grads, compute_grad(images[0], labels[0]), strict=True))


# %% solution-1: not so yet: peak below 1.2 times the result
def lean_sample_grads(images, labels):
    rows = [compute_grad(image, label) for image, label in zip(images, labels, strict=True)]
    return {n: torch.stack(g) for n, g in zip(trained_grads, zip(*rows), strict=True)}


# %% solution-2: right shape, wrong values
def clipped_mean(grads, limit):
    return {name: grad.mean(dim=0) for name, grad in grads.items()}


# %% solution-2: wrong shape
def clipped_mean(grads, limit):
    return grads


# %% solution-3: right shape, wrong values
def gradient_noise(grads):
    return sum((grad**2).flatten(1).sum(dim=1).mean() for grad in grads.values())


# %% solution-1: not so yet: names in the order of the parameters
def lean_sample_grads(images, labels):
    names = sorted(trained_grads)
    result = {n: torch.empty(trained_grads[n].shape, device=device) for n in names}
    for index, (image, label) in enumerate(zip(images, labels, strict=True)):
        for name, grad in zip(trained_grads, compute_grad(image, label), strict=True):
            result[name][index] = grad
    return result


# %% solution-1: wrong type: gradients: expected a dict, got NoneType: the function returned nothing
def lean_sample_grads(images, labels):
    compute_sample_grads(images, labels)


# %% solution-2: not so yet: it changed grads
def clipped_mean(grads, limit):
    norms = sum((grad.flatten(1) ** 2).sum(dim=1) for grad in grads.values()).sqrt()
    scale = (limit / norms).clamp(max=1.0)
    for name, grad in grads.items():
        grads[name] = torch.einsum("b,b...->...", scale, grad) / len(scale)
    return grads


# %% solution-3: not so yet: it changed grads['conv1.weight']
def gradient_noise(grads):
    for grad in grads.values():
        grad -= grad.mean(dim=0)
    return sum((grad**2).flatten(1).sum(dim=1).mean() for grad in grads.values())
