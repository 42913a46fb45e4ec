# %% solution-1: correct
def audited(release, P, generator):
    coins = torch.randint(2, (P,), generator=generator).bool()
    rows = torch.zeros(int(coins.sum()), P)
    rows[torch.arange(len(rows)), coins.nonzero().squeeze(1)] = 50.0
    scores = release(rows)
    k = P * 2 // 5
    top, bottom = scores.topk(k).indices, (-scores).topk(k).indices
    right = coins[top].sum().item() + (~coins[bottom]).sum().item()
    return float(lower_bound(P, 2 * k, right, delta))

# %% solution-1: correct
# - 100.0 * torch.eye(P)[inside]
# + 1000.0 * torch.eye(P)[inside]
# - P // 3
# + P // 2

# %% solution-1: not so yet: tossed by the generator
# - torch.rand(P, generator=generator) < 0.5
# + torch.rand(P) < 0.5

# %% solution-1: not so yet: one call
# -     scores = release(100.0 * torch.eye(P)[inside])
# +     scores = sum(release(100.0 * torch.eye(P)[inside]) for _ in range(2))

# %% solution-1: not so yet: noise made for the mean: above 1
# - P // 3
# + 2

# %% solution-1: not so yet: noise alone: at most 6 of 40
# the best k, chosen by its result
# -     return lower_bound(P, 2 * k, right, delta)
# +     bounds = []
# +     for k in range(5, P // 2, 5):
# +         right = int((~inside[order[:k]]).sum() + inside[order[-k:]].sum())
# +         bounds.append(lower_bound(P, 2 * k, right, delta))
# +     return max(bounds)
