# Answers and their verdicts, as tests/support/answers.py reads them. A wrong one breaks one demand.

# %% solution-1: correct
def pieces(count, size):
    rows = [min(size, count - start) for start in range(0, count, size)]
    if len(rows) > 1 and rows[-1] == 1:
        rows.pop()
        rows[-1] += 1
    return rows

# %% solution-1: correct
def pieces(count, size):
    if count <= size + 1:
        return [count]
    return [size, *pieces(count - size, size)]

# %% solution-1: not so yet: 128 samples in shards of 64: measured [64, 64, 0]
def pieces(count, size):
    full, left = divmod(count, size)
    return [size] * full + [left]

# %% solution-1: not so yet: 129 samples in shards of 64: measured [64, 64, 1]
# -     return [size] * full + [left]
# +     return [size] * full + [left] * (left > 0)

# %% solution-1: not so yet: 130 samples in shards of 64: measured [64, 66]
# - left == 1 and rows:
# + full:
# - += 1
# + += left

# %% solution-1: not so yet: 129 samples in shards of 64: measured [64, 63, 2]
# -         rows.pop()
# -         rows[-1] += 1
# +         rows[-2:] = [size - 1, 2]  # lent, where it should be given

# %% solution-1: your answer raised IndexError
# -     if left == 1 and rows:
# -         rows[-1] += 1
# +     if left == 1:
# +         rows[-1] += 1  # one sample alone has no shard before it

# %% solution-2: correct
def lds(predicted, truth):
    scores = [stats.spearmanr(a, b)[0] for a, b in zip(predicted.T, truth.T)]
    return torch.tensor(scores, dtype=torch.float64).mean()

# %% solution-2: correct
def lds(predicted, truth):
    scores = []
    for column in range(predicted.shape[1]):
        ranks = []
        for values in (predicted[:, column], truth[:, column]):
            _, inverse, counts = values.unique(return_inverse=True, return_counts=True)
            ends = counts.cumsum(0).double()
            ranks.append((ends - (counts - 1) / 2)[inverse])
        scores.append(torch.corrcoef(torch.stack(ranks))[0, 1])
    return torch.stack(scores).mean()

# %% solution-2: right shape, wrong values: the score
# equal values get different ranks
# - return ranks - ranks
# + ranks = values.argsort(dim=0).argsort(dim=0).double()
# +         return ranks - ranks

# %% solution-2: right shape, wrong values: the score
def lds(predicted, truth):  # over the test samples of a subset
    scores = [stats.spearmanr(a, b)[0] for a, b in zip(predicted, truth)]
    return torch.tensor(scores, dtype=torch.float64).mean()

# %% solution-2: wrong shape: the score: expected (), got (6,)
# -     return torch.tensor(scores, dtype=torch.float64).mean()
# +     return torch.tensor(scores, dtype=torch.float64)

# %% solution-3: correct
def nearest(features, query, count):
    products = np.concatenate([features[i : i + 50] @ query for i in range(0, len(features), 50)])
    return products.argsort()[::-1][:count]

# %% solution-3: correct
def nearest(features, query, count):
    best, start = [], 0
    for shard in features.shards:
        products = shard @ query
        best += [(-value, start + row) for row, value in enumerate(products.tolist())]
        best = sorted(best)[:count]
        start += len(shard)
    return np.array([row for _, row in best])

# %% solution-3: not so yet: less than a quarter of the features is held: measured
def nearest(features, query, count):
    return np.argsort(-(features[:] @ query))[:count]

# %% solution-3: right shape, wrong values: rows
# -     return np.argsort(-products)[:count]
# +     return np.sort(np.argsort(-products)[:count])  # not by the product

# %% solution-3: wrong shape: rows: expected (20,), got (480,)
def nearest(features, query, count):  # the nearest of each shard
    return np.concatenate([np.argsort(-(shard @ query))[:count] for shard in features.shards])

# %% solution-4: correct
def exact_sum(parts):
    stacked = torch.stack(parts)
    exponent = int(np.ceil(np.log2(stacked.abs().max().item() * len(parts))))
    scale = 2.0 ** (61 - exponent)
    return (stacked * scale).round().long().sum(dim=0).double() / scale

# %% solution-4: correct
def exact_sum(parts):
    from math import fsum

    entries = torch.stack(parts).flatten(1).T.tolist()
    return torch.tensor([fsum(e) for e in entries], dtype=torch.float64).view_as(parts[0])

# %% solution-4: not so yet: ordinary: the same bits in any order
def exact_sum(parts):
    return sum(parts)

# %% solution-4: not so yet: tiny: right to 1e-12: measured
def exact_sum(parts):
    total = sum((part * 2**40).round().long() for part in parts)  # too coarse for tiny numbers
    return total.double() / 2**40

# %% solution-4: not so yet: huge: right to 1e-12: measured
# - 62 - int(np.frexp(largest * len(parts))[1])
# + max(30, 62 - int(np.frexp(largest * len(parts))[1]))  # huge numbers overflow

# %% solution-5: correct
def private_step(world, number):
    mask = torch.rand(n, generator=torch.Generator().manual_seed(number)) < rate
    own = [torch.arange(n) % world == rank for rank in range(world)]
    sums = [clipped((mask & mine).nonzero().flatten().to(where)) for mine in own]
    return all_reduce([*sums, noise(number)]) / expected_batch  # noise as one more summand

# %% solution-5: correct
def private_step(world, number):
    mask = torch.rand(n, generator=torch.Generator().manual_seed(number)) < rate
    shares = mask.nonzero().flatten().to(where).tensor_split(world)
    total = noise(number)
    for share in shares:
        total = total + clipped(share)
    return total / (rate * n)

# %% solution-5: right shape, wrong values: step 3, 2 workers
# - for rank in range(world)]
# + + noise(number) for rank in range(world)]
# - (all_reduce(sums) + noise(number))
# + all_reduce(sums)

# %% solution-5: right shape, wrong values: step 3, 1 workers
# -     return (all_reduce(sums) + noise(number)) / expected_batch
# +     return (all_reduce(sums) + noise(number)) / len(drawn)  # of this draw

# %% solution-5: right shape, wrong values: step 3, 2 workers
# a draw of its own for each worker, all with one seed
# - sums = [clipped(drawn[rank::world]) for rank in range(world)]
# + shares = [torch.arange(n)[rank::world] for rank in range(world)]
# +     sums = [clipped(each[chance[: len(each)] < rate].to(where)) for each in shares]

# %% solution-5: right shape, wrong values: step 3, 1 workers
# -     sums = [clipped(drawn[rank::world]) for rank in range(world)]
# -     return (all_reduce(sums) + noise(number)) / expected_batch
# +     return all_reduce([clipped(drawn[rank::world]) for rank in range(world)]) / expected_batch
