# %% solution-1: correct
def select(train, targets, tasks, count):
    ids, inverse = tasks.unique(return_inverse=True)
    sums = targets.new_zeros(len(ids), targets.shape[1]).index_add_(0, inverse, targets)
    best = (F.normalize(train, dim=1) @ F.normalize(sums, dim=1).T).max(dim=1).values
    return best.argsort(descending=True)[:count]

# %% solution-1: correct
def select(train, targets, tasks, count):
    best = torch.full((len(train),), -1.0, dtype=train.dtype)
    for task in sorted(set(tasks.tolist())):
        mean = torch.stack([g for g, t in zip(targets, tasks.tolist()) if t == task]).mean(dim=0)
        best = best.maximum(train @ mean / train.norm(dim=1) / mean.norm())
    return best.sort(descending=True).indices[:count]

# %% solution-1: right shape, wrong values
# - .amax(dim=1)
# + .mean(dim=1)

# %% solution-1: right shape, wrong values
# inner products: a window with a large gradient wins
# - F.normalize(train)
# + train

# %% solution-1: right shape, wrong values: 40 samples, tasks in disorder
# - in tasks.unique()
# + in range(len(tasks.unique()))

# %% solution-1: not so yet: it changed cases['50 windows'][0]
# - means = torch
# + train /= train.norm(dim=1, keepdim=True)
# +     means = torch
