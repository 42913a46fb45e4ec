# %% solution-1: correct
def grads_and_losses(params, images, labels):  # a list
    compute = vmap(torch.func.grad_and_value(compute_loss), in_dims=(None, 0, 0))
    return list(compute(params, images, labels))

# %% solution-1: correct
def grads_and_losses(params, images, labels):  # the value as an auxiliary result
    def loss_twice(params, sample, target):
        loss = compute_loss(params, sample, target)
        return loss, loss

    return vmap(grad(loss_twice, has_aux=True), in_dims=(None, 0, 0))(params, images, labels)

# %% solution-1: not so yet: one forward pass: measured 2
def grads_and_losses(params, images, labels):
    losses = vmap(compute_loss, in_dims=(None, 0, 0))(params, images, labels)
    return compute_sample_grads(params, images, labels), losses

# %% solution-1: wrong shape
def grads_and_losses(params, images, labels):
    return compute_sample_grads(params, images, labels), compute_loss(params, images[0], labels[0])

# %% solution-1: wrong type: gradients and losses[0]: expected a dict, got Tensor
def grads_and_losses(params, images, labels):  # in the other order
    compute = vmap(torch.func.grad_and_value(compute_loss), in_dims=(None, 0, 0))
    return compute(params, images, labels)[::-1]

# %% solution-1: your answer raised RuntimeError: Input type (double)
# the model's own parameters
# - return compute(params, images, labels)
# + return compute(dict(model.named_parameters()), images, labels)

# %% solution-2: correct
def ensemble_grads(stacked, images, labels):  # the maps the other way round
    of_networks = vmap(grad(compute_loss), in_dims=(0, None, None))
    return vmap(of_networks, in_dims=(None, 0, 0), out_dims=1)(stacked, images, labels)

# %% solution-2: correct
def ensemble_grads(stacked, images, labels):  # through a network of its own
    own = SimpleCNN().to(device)

    def loss(params, image, label):
        return F.cross_entropy(functional_call(own, params, (image[None],)), label[None])

    return vmap(vmap(grad(loss), (None, 0, 0)), (0, None, None))(stacked, images, labels)

# %% solution-2: not so yet: one forward pass: measured 3
def ensemble_grads(stacked, images, labels):
    networks = [{n: p[m] for n, p in stacked.items()} for m in range(len(stacked["fc2.bias"]))]
    rows = [compute_sample_grads(params, images, labels) for params in networks]
    return {name: torch.stack([row[name] for row in rows]) for name in stacked}

# %% solution-2: wrong shape
def ensemble_grads(stacked, images, labels):
    grads = vmap(compute_sample_grads, in_dims=(0, None, None))(stacked, images, labels)
    return {name: g.transpose(0, 1) for name, g in grads.items()}

# %% solution-2: right shape, wrong values
def ensemble_grads(stacked, images, labels):  # one network for all
    first = {name: p[0].expand_as(p) for name, p in stacked.items()}
    return vmap(compute_sample_grads, in_dims=(0, None, None))(first, images, labels)

# %% solution-3: correct
def clipped_sum(params, images, labels, clipping_norm, chunk_size):
    total = dict.fromkeys(params, 0)
    for start in range(0, len(images), chunk_size):
        few = slice(start, start + chunk_size)
        grads = compute_sample_grads(params, images[few], labels[few])
        norms = sum(g.flatten(1).norm(dim=1) ** 2 for g in grads.values()).sqrt()
        scale = (clipping_norm / norms).clamp(max=1.0)
        for name in list(grads):
            total[name] = total[name] + torch.tensordot(scale, grads.pop(name), dims=1)
    return total

# %% solution-3: correct
def clipped_sum(params, images, labels, clipping_norm, chunk_size):
    # Norms first, then one gradient.
    norms = vmap(gradient_norm, (None, 0, 0), chunk_size=chunk_size)(params, images, labels)
    scales = (clipping_norm / norms).clamp(max=1.0)

    def weighted_loss(params):
        return scales @ vmap(compute_loss, (None, 0, 0))(params, images, labels)

    return grad(weighted_loss)(params)

# %% solution-3: right shape, wrong values
# the last chunk is lost
# -  in chunks:
# +  in [*chunks][: len(images) // chunk_size]:

# %% solution-3: right shape, wrong values
# each parameter by itself
# - part * scale for
# + part * (clipping_norm / part.norm()).clamp(max=1.0) for

# %% solution-3: not so yet: the peak is below
# all gradients at a time
# -  in chunks:
# +  in [(images, labels)]:

# %% solution-3: not so yet: the peak is below
# all raw gradients at a time, in NumPy
# - total = {name
# + kept = []
# +     for x, t in zip(images, labels):
# +         one = grad(compute_loss)(params, x, t)
# +         kept.append([g.cpu().numpy().copy() for g in one.values()])
# +     total = {name

# %% solution-3: not so yet: it changed cases
def clipped_sum(params, images, labels, clipping_norm, chunk_size):
    for p in params.values():
        p.zero_()
    return params
