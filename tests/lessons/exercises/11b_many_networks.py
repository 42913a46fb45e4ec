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
def choose_rate(rates, initial, orders, training, held_out):
    shares = []
    for rate in rates:
        networks = train_many(initial, orders, rate, *training)
        logits = vmap(lambda own: functional_call(digit_net, own, held_out[:1]))(networks)
        shares.append((logits.argmax(dim=2) == held_out[1]).float().mean())
    return float(rates[torch.stack(shares).argmax()]), torch.stack(shares)

# %% solution-2: correct
# - .float().mean(dim=(1, 2))
# + .float().mean(dim=2).mean(dim=1)

# %% solution-2: right shape, wrong values: shares
# judged on what it was trained on
# - images, labels = held_out
# + images, labels = training

# %% solution-2: wrong shape: shares: expected (3,), got (3, 10)
# - mean(dim=(1, 2))
# + mean(dim=2)
# - rates[shares.argmax()]
# + rates[shares.mean(dim=1).argmax()]

# %% solution-2: not so yet: the best average decides
# the luckiest network decides
# - rates[shares.argmax()]
# + rates[(logits.argmax(dim=3) == labels).float().mean(dim=2).amax(dim=1).argmax()]
