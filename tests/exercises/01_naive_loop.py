# Answers and their verdicts, as tests/support/answers.py reads them. A wrong one breaks one demand.

# %% solution-1: correct
def sample_norms(grads):
    return torch.cat([grad.flatten(1) for grad in grads.values()], dim=1).norm(dim=1)

# %% solution-1: correct
def sample_norms(grads):
    norms = [grad.flatten(1).norm(dim=1) for grad in grads.values()]
    return torch.stack(norms).norm(dim=0)

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
def read_images(weight_grad, bias_grad):
    on = bias_grad != 0
    ratios = weight_grad[on] / bias_grad[on, None]
    rounded = (1e6 * ratios).round()
    _, group, counts = rounded.unique(dim=0, return_inverse=True, return_counts=True)
    twice = (counts > 1).nonzero()
    return ratios[(group == twice).int().argmax(dim=1)]

# %% solution-2: correct
def read_images(weight_grad, bias_grad):
    ratios = weight_grad / bias_grad[:, None]  # NaN is near nothing
    near = torch.stack([(ratios - ratio).abs().amax(dim=1) < 1e-9 for ratio in ratios])
    first = near.int().argmax(dim=1)
    return ratios[first[near.sum(dim=1) > 1].unique()].flip(0)

# %% solution-2: wrong shape: read off 4 images: expected (4, 784)
# each mixture, too
# - is_first & (equal.sum(dim=1) > 1)
# + is_first

# %% solution-2: wrong shape: read off 4 images: expected (4, 784)
# an image for each unit that gives it
# - is_first & (equal.sum(dim=1) > 1)
# + equal.sum(dim=1) > 1

# %% solution-2: wrong shape: read off 2 images: expected (2, 392), got (1, 392)
# as if images added positive numbers alone
# - bias_grad != 0
# + bias_grad > 0

# %% solution-2: right shape, wrong values: all 4
# the rows, which are not divided
# - return ratios[
# + return weight_grad[on][

# %% solution-2: wrong shape: read off 2 images: expected (2, 392), got (4, 784)
def read_images(weight_grad, bias_grad):
    return digits.double().flatten(1)

# %% solution-2: not so yet: it changed means
# - ratios = weight_grad[on] / bias_grad[on, None]
# + weight_grad /= bias_grad[:, None]
# +     ratios = weight_grad[on]

# %% solution-2: wrong type: read off 4 images: expected a tensor
# -     return ratios[is_first & (equal.sum(dim=1) > 1)]
# +     return list(ratios[is_first & (equal.sum(dim=1) > 1)])

# %% solution-3: correct
def clipped_mean(grads, limit):
    flat = torch.cat([grad.flatten(1) for grad in grads.values()], dim=1)
    scale = 1 / (flat.norm(dim=1) / limit).clamp(min=1)
    return {
        name: (grad.flatten(1) * scale[:, None]).mean(dim=0).view(grad.shape[1:])
        for name, grad in grads.items()
    }

# %% solution-3: correct
def clipped_mean(grads, limit):
    norms = sample_norms(grads)
    mean = {name: torch.zeros_like(grad[0]) for name, grad in grads.items()}
    for index, norm in enumerate(norms.tolist()):
        for name, grad in grads.items():
            mean[name] += grad[index] * (min(1.0, limit / norm) / len(norms))
    return mean

# %% solution-3: correct
# as Opacus writes it
# - (limit / norms)
# + (limit / (norms + 1e-6))

# %% solution-3: right shape, wrong values
# samples below the limit do not stay as they are
# - (limit / norms).clamp(max=1.0)
# + limit / norms

# %% solution-3: right shape, wrong values
# another limit
# - limit / norms
# + norms.median() / norms

# %% solution-3: right shape, wrong values
# each parameter by itself, not all together
# - "b,b...->...", scale, grad)
# + "b,b...->...", (limit / grad.flatten(1).norm(dim=1)).clamp(max=1.0), grad)

# %% solution-3: right shape, wrong values
def clipped_mean(grads, limit):  # the mean is clipped, not the samples
    mean = {name: grad.mean(dim=0) for name, grad in grads.items()}
    norm = sum((grad**2).sum() for grad in mean.values()).sqrt()
    return {name: grad * (limit / norm).clamp(max=1.0) for name, grad in mean.items()}

# %% solution-3: wrong shape
def clipped_mean(grads, limit):
    return grads

# %% solution-3: not so yet: it changed grads
# - torch.einsum("b,b...->...", scale, grad)
# + grad.mul_(scale.view(-1, *[1] * (grad.dim() - 1))).sum(dim=0)

# %% solution-4: correct
def gradient_noise(compute_grad, images, labels):  # Welford's way, and a float
    mean, spread = None, 0.0
    for index, pair in enumerate(zip(images, labels)):
        flat = torch.cat([grad.flatten() for grad in compute_grad(*pair)])
        mean = torch.zeros_like(flat) if mean is None else mean
        away = flat - mean
        mean += away / (index + 1)
        spread += (away @ (flat - mean)).item()
    return spread / len(images)

# %% solution-4: correct
def gradient_noise(compute_grad, images, labels):  # two passes, and a tensor of float64
    mean = [torch.zeros_like(grad) for grad in compute_grad(images[0], labels[0])]
    for image, label in zip(images, labels):
        for running, grad in zip(mean, compute_grad(image, label)):
            running += grad / len(images)
    distance = torch.zeros((), dtype=torch.float64)
    for image, label in zip(images, labels):
        for center, grad in zip(mean, compute_grad(image, label)):
            distance += ((grad - center) ** 2).sum().item()
    return distance / len(images)

# %% solution-4: right shape, wrong values
# not from their mean
# - return squares / len(images) - mean_square
# + return squares / len(images)

# %% solution-4: right shape, wrong values
# over B - 1
# - return squares / len(images) - mean_square
# + return (squares / len(images) - mean_square) * len(images) / (len(images) - 1)

# %% solution-4: not so yet: never more than a fifth of all gradients
def gradient_noise(compute_grad, images, labels):
    grads = zip(*[compute_grad(*pair) for pair in zip(images, labels)])
    return sum(torch.stack(g).flatten(1).var(dim=0, correction=0).sum() for g in grads)

# %% solution-4: wrong shape: gradient noise: expected ()
# a number for each parameter
# - return squares / len(images) - mean_square
# + return (squares / len(images) - mean_square).expand(len(total))

# %% solution-5: correct
def suspects(model, last_layer, images, labels, count):
    lengths = []
    for image, label in zip(images, labels):
        loss = F.cross_entropy(model(image[None]), label[None])
        grads = torch.autograd.grad(loss, [model.get_parameter(name) for name in last_layer])
        lengths.append(sum((grad**2).sum() for grad in grads))
    return torch.stack(lengths).topk(count).indices

# %% solution-5: correct
def suspects(model, last_layer, images, labels, count):
    grads = gradients.loop_gradients(model, F.cross_entropy, images, labels, wrt=last_layer)
    return sample_norms(grads).sort(descending=True).indices[:count]

# %% solution-5: right shape, wrong values
# without the bias
# - flat.norm(dim=1)
# + grads[last_layer[0]].flatten(1).norm(dim=1)

# %% solution-5: right shape, wrong values
# the sum of two norms, not the norm of both together
# - flat.norm(dim=1)
# + sum(grad.flatten(1).norm(dim=1) for grad in grads.values())

# %% solution-5: right shape, wrong values
# the right ones, in the order of the data
# - .argsort(descending=True)[:count]
# + .topk(count).indices.sort().values

# %% solution-5: wrong shape: indices: expected (30,)
# of any `count` as many
# - .argsort(descending=True)[:count]
# + .argsort(descending=True)[:16]

# %% solution-5: wrong dtype
# norms, not indices
# - .argsort(descending=True)[:count]
# + .topk(count).values

# %% solution-5: not so yet: only the last layer is differentiated
def suspects(model, last_layer, images, labels, count):
    grads = gradients.loop_gradients(model, F.cross_entropy, images, labels)
    last = {name: grads[name] for name in last_layer}
    return sample_norms(last).argsort(descending=True)[:count]
