# %% solution-1: correct
def disagreement(params, images):
    mean, conditional, count = 0, 0, len(params["1.bias"])
    for i in range(count):
        own = {name: p[i] for name, p in params.items()}
        logs = functional_call(digit_net, own, (images,)).log_softmax(dim=1)
        mean = mean + logs.exp() / count
        conditional = conditional - (logs.exp() * logs).sum(dim=1) / count
    return -(mean * mean.log()).sum(dim=1) - conditional

# %% solution-1: correct
# the mean divergence from the mean softmax
# -     return entropy(p.mean(dim=0)) - entropy(p).mean(dim=0)
# +     return (p * (p.log() - p.mean(dim=0).log())).sum(dim=2).mean(dim=0)

# %% solution-1: right shape, wrong values: disagreement
# logits averaged
# - (params).softmax(dim=2)
# + (params)
# -     return entropy(p.mean(dim=0)) - entropy(p).mean(dim=0)
# +     return entropy(p.mean(dim=0).softmax(dim=1)) - entropy(p.softmax(dim=2)).mean(dim=0)

# %% solution-1: wrong shape: disagreement: expected (797,), got (5,)
# - entropy(p.mean(dim=0)) - entropy(p).mean(dim=0)
# + entropy(p.mean(dim=1)) - entropy(p).mean(dim=1)

# %% solution-2: correct
# - (torch.arange(x.shape[1], device=x.device) < sizes[:, None])[..., None].to(x.dtype)
# + nn.utils.rnn.pad_sequence([torch.ones_like(x) for x, _ in tasks], batch_first=True)

# %% solution-2: correct
def gradients_of_unequal(params, tasks):
    # A point repeated counts again, so each is repeated until all tasks have 60 points.
    x, y = (torch.stack([each.repeat(60 // len(each), 1) for each in p]) for p in zip(*tasks))
    return vmap(grad(squared_error), in_dims=(None, 0, 0))(params, x, y)

# %% solution-2: right shape, wrong values: gradients
# - (squares * mask).sum() / mask.sum()
# + (squares * mask).mean()

# %% solution-2: right shape, wrong values: gradients
# a real point may be at zero
# - (torch.arange(x.shape[1], device=x.device) < sizes[:, None])[..., None].to(x.dtype)
# + (x != 0).to(x.dtype)

# %% solution-2: not so yet: `net` runs once: measured 3 runs
def gradients_of_unequal(params, tasks):
    rows = [grad(squared_error)(params, x, y) for x, y in tasks]
    return {name: torch.stack([row[name] for row in rows]) for name in params}

# %% solution-3: correct
def rate_step(params, rates, tasks, lr):
    logs = {name: rate.log().detach().requires_grad_() for name, rate in rates.items()}
    losses = []
    for x, y, x_query, y_query in zip(*tasks):
        leaves = {name: p.clone().requires_grad_() for name, p in params.items()}
        slopes = torch.autograd.grad(squared_error(leaves, x, y), list(leaves.values()))
        own = {n: p - logs[n].exp() * g for (n, p), g in zip(params.items(), slopes)}
        losses.append(squared_error(own, x_query, y_query))
    slopes = torch.autograd.grad(torch.stack(losses).mean(), list(logs.values()))
    return {n: (log - lr * g).exp().detach() for (n, log), g in zip(logs.items(), slopes)}

# %% solution-3: correct
# - (log - lr * slopes[name]).exp()
# + rates[name] * torch.exp(-lr * slopes[name])

# %% solution-3: right shape, wrong values: rates
# with respect to the rate, not to its logarithm
# - (log - lr * slopes[name]).exp()
# + (log - lr * slopes[name] / log.exp()).exp()

# %% solution-3: right shape, wrong values: rates
# - logs[name].exp() * g[name]
# + logs[name].exp().detach() * g[name]

# %% solution-4: correct
def choose_rate(rates, initial, orders, training, held_out):
    shares = []
    for rate in rates:
        networks = train_many(initial, orders, rate, *training)
        logits = vmap(lambda own: functional_call(digit_net, own, held_out[:1]))(networks)
        shares.append((logits.argmax(dim=2) == held_out[1]).float().mean())
    return float(rates[torch.stack(shares).argmax()]), torch.stack(shares)

# %% solution-4: correct
# - .float().mean(dim=(1, 2))
# + .float().mean(dim=2).mean(dim=1)

# %% solution-4: right shape, wrong values: shares
# judged on what it was trained on
# - images, labels = held_out
# + images, labels = training

# %% solution-4: wrong shape: shares: expected (3,), got (3, 10)
# - mean(dim=(1, 2))
# + mean(dim=2)
# - rates[shares.argmax()]
# + rates[shares.mean(dim=1).argmax()]

# %% solution-4: not so yet: the best average decides
# the luckiest network decides
# - rates[shares.argmax()]
# + rates[(logits.argmax(dim=3) == labels).float().mean(dim=2).amax(dim=1).argmax()]
