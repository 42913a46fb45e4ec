# Answers and their verdicts, as tests/support/answers.py reads them. A wrong one breaks one demand.

# %% solution-1: correct
def weighted_grads(params, images, labels, weights):  # the gradient is linear in the weight
    grads = compute_sample_grads(params, images, labels)
    return {n: g * weights.view(-1, *[1] * (g.dim() - 1)) for n, g in grads.items()}

# %% solution-1: correct
def weighted_grads(params, images, labels, weights):
    def loss(params, sample, target, weight):
        predictions = functional_call(model, params, (sample[None],))
        return (weight * F.cross_entropy(predictions, target[None], reduction="none")).sum()

    mapped = vmap(grad(loss), (None, 0, 0, 0), chunk_size=max(1, len(images) // 2))
    return mapped(params, images, labels, weights)

# %% solution-1: right shape, wrong values
# all weights for each sample
# - weight * compute_loss
# + weights.sum() * compute_loss

# %% solution-1: your answer raised RuntimeError: Input type (double)
# the model's own parameters
# - return compute(params, images, labels, weights)
# + return compute(dict(model.named_parameters()), images, labels, weights)

# %% solution-1: wrong shape
# the gradient of the weighted batch
# - return compute(params, images, labels, weights)
# + return {n: g.mean(dim=0) for n, g in compute(params, images, labels, weights).items()}

# %% solution-2: correct
def grads_and_losses(params, images, labels):  # a list
    compute = vmap(torch.func.grad_and_value(compute_loss), in_dims=(None, 0, 0))
    return list(compute(params, images, labels))

# %% solution-2: correct
def grads_and_losses(params, images, labels):  # the value as an auxiliary result
    def loss_twice(params, sample, target):
        loss = compute_loss(params, sample, target)
        return loss, loss

    return vmap(grad(loss_twice, has_aux=True), in_dims=(None, 0, 0))(params, images, labels)

# %% solution-2: not so yet: one forward pass: measured 2
def grads_and_losses(params, images, labels):
    losses = vmap(compute_loss, in_dims=(None, 0, 0))(params, images, labels)
    return compute_sample_grads(params, images, labels), losses

# %% solution-2: wrong shape
def grads_and_losses(params, images, labels):
    return compute_sample_grads(params, images, labels), compute_loss(params, images[0], labels[0])

# %% solution-2: right shape, wrong values
def grads_and_losses(params, images, labels):
    return compute_sample_grads(params, images, labels), torch.zeros(len(images), device=device)

# %% solution-2: wrong type: gradients and losses[0]: expected a dict, got Tensor
def grads_and_losses(params, images, labels):  # in the other order
    compute = vmap(torch.func.grad_and_value(compute_loss), in_dims=(None, 0, 0))
    return compute(params, images, labels)[::-1]

# %% solution-3: correct
def ensemble_grads(stacked, images, labels):
    return vmap(lambda params: compute_sample_grads(params, images, labels))(stacked)

# %% solution-3: correct
def ensemble_grads(stacked, images, labels):  # the maps the other way round
    of_models = vmap(grad(compute_loss), in_dims=(0, None, None))
    return vmap(of_models, in_dims=(None, 0, 0), out_dims=1)(stacked, images, labels)

# %% solution-3: not so yet: one forward pass: measured 3
def ensemble_grads(stacked, images, labels):
    models = [{n: p[m] for n, p in stacked.items()} for m in range(len(stacked["fc2.bias"]))]
    rows = [compute_sample_grads(params, images, labels) for params in models]
    return {name: torch.stack([row[name] for row in rows]) for name in stacked}

# %% solution-3: wrong shape
def ensemble_grads(stacked, images, labels):
    grads = vmap(compute_sample_grads, in_dims=(0, None, None))(stacked, images, labels)
    return {name: g.transpose(0, 1) for name, g in grads.items()}

# %% solution-3: right shape, wrong values
def ensemble_grads(stacked, images, labels):  # one model for all
    first = {name: p[0].expand_as(p) for name, p in stacked.items()}
    return vmap(compute_sample_grads, in_dims=(0, None, None))(first, images, labels)

# %% solution-3: your answer raised
def ensemble_grads(stacked, images, labels):
    return vmap(compute_sample_grads)(stacked, images, labels)

# %% solution-4: correct
def clipped_sum(params, images, labels, limit, chunk_size):
    total = dict.fromkeys(params, 0)
    for start in range(0, len(images), chunk_size):
        few = slice(start, start + chunk_size)
        grads = compute_sample_grads(params, images[few], labels[few])
        norms = sum(g.flatten(1).norm(dim=1) ** 2 for g in grads.values()).sqrt()
        scale = (limit / norms).clamp(max=1.0)
        for name in list(grads):
            total[name] = total[name] + torch.tensordot(scale, grads.pop(name), dims=1)
    return total

# %% solution-4: correct
def clipped_sum(params, images, labels, limit, chunk_size):  # norms first, then one gradient
    def norm_of(params, image, label):
        return sum((g**2).sum() for g in grad(compute_loss)(params, image, label).values()).sqrt()

    norms_of = vmap(norm_of, (None, 0, 0), chunk_size=chunk_size)
    scales = (limit / norms_of(params, images, labels)).clamp(max=1.0)

    def weighted_loss(params):
        return scales @ vmap(compute_loss, (None, 0, 0))(params, images, labels)

    return grad(weighted_loss)(params)

# %% solution-4: not so yet: chunks of 5: 5 to 10 forward passes: measured 23
def clipped_sum(params, images, labels, limit, chunk_size):  # one at a time, whatever the size
    total = {name: torch.zeros_like(p) for name, p in params.items()}
    for image, label in zip(images, labels):
        grads = grad(compute_loss)(params, image, label)
        norm = torch.cat([g.flatten() for g in grads.values()]).norm().item()
        for name, g in grads.items():
            total[name].add_(g, alpha=min(1.0, limit / norm))
    return total

# %% solution-4: not so yet: chunks of 5: 5 to 10 forward passes: measured 12
# - images.split(chunk_size), labels.split(chunk_size)
# + images.split(2), labels.split(2)

# %% solution-4: right shape, wrong values
# the last chunk is lost
# -  in chunks:
# +  in [*chunks][: len(images) // chunk_size]:

# %% solution-4: right shape, wrong values
# each parameter by itself
# - g * scale for
# + g * (limit / g.norm()).clamp(max=1.0) for

# %% solution-4: not so yet: chunks of 5: the peak is below
def clipped_sum(params, images, labels, limit, chunk_size):  # all clipped gradients at a time
    def clipped_grad(params, sample, target):
        g = grad(compute_loss)(params, sample, target)
        norm = sum((each**2).sum() for each in g.values()).sqrt()
        return {n: each * (limit / norm).clamp(max=1.0) for n, each in g.items()}

    compute = vmap(clipped_grad, (None, 0, 0), chunk_size=chunk_size)
    return {n: g.sum(0) for n, g in compute(params, images, labels).items()}

# %% solution-4: not so yet: chunks of 2: 9 to 18 forward passes: measured 6
# - images.split(chunk_size), labels.split(chunk_size)
# + images.split(3), labels.split(3)

# %% solution-4: not so yet: it changed cases
def clipped_sum(params, images, labels, limit, chunk_size):
    for p in params.values():
        p.zero_()
    return params

# %% solution-5: correct
def sample_grads_of(model, images, labels):
    return gradients.func_gradients(model, F.cross_entropy, images, labels, randomness="different")

# %% solution-5: correct
def sample_grads_of(model, images, labels):
    tensors = {n: t.detach() for n, t in (*model.named_parameters(), *model.named_buffers())}
    names = [n for n, p in model.named_parameters() if p.requires_grad]
    wanted = {n: tensors.pop(n) for n in names}

    def loss_of(wanted, sample, target):
        predictions = functional_call(model, tensors | wanted, (sample.unsqueeze(0),))
        return F.nll_loss(predictions.log_softmax(dim=1), target.unsqueeze(0))

    return vmap(grad(loss_of), (None, 0, 0), randomness="different")(wanted, images, labels)

# %% solution-5: not so yet: 32 times one image: several masks
def sample_grads_of(model, images, labels):
    return gradients.func_gradients(model, F.cross_entropy, images, labels, randomness="same")

# %% solution-5: not expected: gradients in eval mode: 0.weight, 0.bias
# the frozen ones, too
# - in model.named_parameters() if p.requires_grad}
# + in model.named_parameters()}

# %% solution-5: not so yet: they are detached
# - trainable = {n: p.detach() for
# + trainable = {n: p for

# %% solution-5: not so yet: it stays in its mode
# - return compute(trainable, images, labels)
# + return (compute(trainable, images, labels), model.eval())[0]

# %% solution-5: wrong shape
def sample_grads_of(model, images, labels):  # the gradient of the batch
    names, wanted = zip(*[(n, p) for n, p in model.named_parameters() if p.requires_grad])
    loss = F.cross_entropy(model(images), labels)
    return dict(zip(names, torch.autograd.grad(loss, wanted)))
