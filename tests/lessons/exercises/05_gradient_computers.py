# %% solution-1: correct
def cosine_scores(computer, train, test):
    wanted = flatten(computer.compute_per_sample_grad(test))
    rows = []
    for batch in zip(*(tensor.split(40) for tensor in train), strict=True):
        own = flatten(computer.compute_per_sample_grad(batch))
        rows.append(own @ wanted.T / own.norm(dim=1)[:, None] / wanted.norm(dim=1))
    return torch.cat(rows)

# %% solution-1: correct
def cosine_scores(computer, train, test):
    wanted = flatten(computer.compute_per_sample_grad(test))[None]
    batches = zip(*(tensor.split(5) for tensor in train), strict=True)
    each = []
    for batch in batches:
        own = flatten(computer.compute_per_sample_grad(batch))
        each.append(F.cosine_similarity(own[:, None], wanted, dim=2))
    return torch.cat(each)

# %% solution-1: wrong shape
# - directions(batch) @ wanted.T
# + wanted @ directions(batch).T

# %% solution-1: right shape, wrong values: digits
# no norms
# - return F.normalize(flatten(computer.compute_per_sample_grad(batch)), dim=1)
# + return flatten(computer.compute_per_sample_grad(batch))

# %% solution-1: right shape, wrong values: digits
# each parameter divided by its own norm
# - return F.normalize(flatten(computer.compute_per_sample_grad(batch)), dim=1)
# + grads = computer.compute_per_sample_grad(batch)
# +         parts = [F.normalize(g.flatten(1), dim=1) / len(grads) ** 0.5 for g in grads.values()]
# +         return torch.cat(parts, dim=1)

# %% solution-1: your answer raised
# texts have three tensors
# - wanted = directions(test)
# + wanted = directions(test[:2])

# %% solution-1: not so yet: the peak is below 500 rows
# - split(50)
# + split(500)

# %% solution-2: correct
def find_mislabeled(computer, images, labels, count):
    losses = F.cross_entropy(computer.model(images), labels, reduction="none")
    return losses.argsort(descending=True)[:count]

# %% solution-2: correct
def find_mislabeled(computer, images, labels, count):
    batch = (images, labels)
    norms = flatten(computer.compute_per_sample_grad(batch)).norm(dim=1)
    return (norms * computer.compute_factors(batch)).topk(count).indices

# %% solution-2: not so yet: 8 of 10 are found
# - topk(count)
# + topk(count, largest=False)

# %% solution-2: not so yet: 8 of 10 are found
# the norms of the margin's gradients
# - computer.compute_factors((images, labels)).
# + flatten(computer.compute_per_sample_grad((images, labels))).norm(dim=1).

# %% solution-2: not so yet: each sample is named once
# - .indices
# + .indices[[*range(count - 1), 0]]  # the first again for the last

# %% solution-2: wrong shape
# - topk(count)
# + topk(60)

# %% solution-2: not so yet: it changed cases[0][0][2]
# - return computer
# + labels[0] = (labels[0] + 1) % 10
# +     return computer
