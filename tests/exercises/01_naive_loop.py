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
