# Wrong answers: the id of the solution that each stands for, and the verdict it gets.

# %% solution-1: wrong shape
def grads_and_losses(params, images, labels):
    return compute_sample_grads(params, images, labels), compute_loss(params, images[0], labels[0])


# %% solution-1: right shape, wrong values
def grads_and_losses(params, images, labels):
    return compute_sample_grads(params, images, labels), torch.zeros(len(images), device=device)


# %% solution-2: wrong shape
def ensemble_grads(stacked, images, labels):
    grads = vmap(compute_sample_grads, in_dims=(0, None, None))(stacked, images, labels)
    return {name: g.transpose(0, 1) for name, g in grads.items()}


# %% solution-3: right shape, wrong values
def clipped_sum(params, images, labels, limit, chunk_size):
    return {n: g.sum(dim=0) for n, g in compute_sample_grads(params, images, labels).items()}


# %% solution-3: not so yet: the peak is below half
def clipped_sum(params, images, labels, limit, chunk_size):
    grads = compute_sample_grads(params, images, labels)
    norms = sum((g.flatten(1) ** 2).sum(dim=1) for g in grads.values()).sqrt()
    scale = (limit / norms).clamp(max=1.0)
    return {n: torch.einsum("b,b...->...", scale, g) for n, g in grads.items()}


# %% solution-1: wrong length: gradients and losses: expected 2 items, got 1
def grads_and_losses(params, images, labels):
    return (compute_sample_grads(params, images, labels),)


# %% solution-2: your answer raised
def ensemble_grads(stacked, images, labels):
    return vmap(compute_sample_grads)(stacked, images, labels)


# %% solution-3: not so yet: it changed params
def clipped_sum(params, images, labels, limit, chunk_size):
    for p in params.values():
        p.zero_()
    return params
