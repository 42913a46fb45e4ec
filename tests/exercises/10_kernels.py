# Answers and their verdicts, as tests/support/answers.py reads them. A wrong one breaks one demand.

# %% solution-1: correct
def break_even(samples, outputs):
    return 1 + outputs * samples

# %% solution-1: correct
def break_even(samples, outputs):
    p = 1
    while samples * outputs * p <= (samples * outputs) ** 2:
        p += 1
    return p

# %% solution-1: right shape, wrong values: N = 64, Y = 10
def break_even(samples, outputs):
    return samples * outputs  # as many

# %% solution-1: right shape, wrong values: N = 64, Y = 10
def break_even(samples, outputs):
    return samples * outputs**2 + 1

# %% solution-2: correct
def step_effect(theta, slopes, rate):
    flat = theta.transpose(1, 2).flatten(2).flatten(0, 1)
    return (-rate / len(slopes) * flat @ slopes.flatten()).view(len(theta), -1)

# %% solution-2: correct
def step_effect(theta, slopes, rate):
    change = torch.zeros(len(theta), theta.shape[2], dtype=theta.dtype, device=theta.device)
    for j in range(len(slopes)):
        change -= rate * theta[:, j] @ slopes[j]
    return change / len(slopes)

# %% solution-2: right shape, wrong values
def step_effect(theta, slopes, rate):
    return rate * torch.einsum("ijab,jb->ia", theta, slopes) / len(slopes)

# %% solution-2: right shape, wrong values: another kernel
# outputs swapped, which the kernel of the lesson does not show
# - torch.einsum("ijab,jb->ia", theta, slopes)
# + torch.einsum("ijab,ja->ib", theta, slopes)

# %% solution-2: wrong shape
def step_effect(theta, slopes, rate):
    return -rate * torch.einsum("ijab,jb->ija", theta, slopes) / len(slopes)

# %% solution-3: correct
def loo_errors(theta, residual, ridge):
    n, y = residual.shape
    matrix = matrix_of(theta)
    leverage = torch.linalg.solve(matrix + ridge * torch.eye(n * y).to(matrix), matrix)
    blocks = [leverage[i * y : (i + 1) * y, i * y : (i + 1) * y] for i in range(n)]
    eye = torch.eye(y).to(matrix)
    return torch.stack(
        [torch.linalg.inv(eye - block) @ r for block, r in zip(blocks, residual, strict=True)]
    )

# %% solution-3: correct
def loo_errors(theta, residual, ridge):
    n, y = residual.shape
    inverse = (matrix_of(theta) + ridge * torch.eye(n * y).to(theta)).inverse()
    errors = torch.empty_like(residual)
    for i, block in enumerate(inverse.view(n, y, n, y).diagonal(dim1=0, dim2=2).movedim(-1, 0)):
        errors[i] = torch.linalg.solve(block, residual[i]) / ridge
    return errors

# %% solution-3: right shape, wrong values
def loo_errors(theta, residual, ridge):
    n, y = residual.shape
    inverse = (matrix_of(theta) + ridge * torch.eye(n * y).to(theta)).inverse()
    return residual / (ridge * inverse.diagonal().view(n, y))

# %% solution-3: right shape, wrong values: errors, against 6 fits
# outputs swapped
# - matrix_of(theta)
# + matrix_of(theta.transpose(2, 3))

# %% solution-3: wrong shape
# -     return residual / (ridge * inverse.diagonal().view(n, y))
# +     blocks = inverse.view(n, y, n, y).diagonal(dim1=0, dim2=2).movedim(-1, 0)
# +     return torch.linalg.solve(ridge * blocks, residual).flatten()

# %% solution-4: correct
def variance(model, x, train, ridge):
    inside = kernels.ntk(model, train)[:, :, 0, 0]
    inside = inside + ridge * torch.eye(len(inside)).to(inside)
    result = []
    for part in x.split(10):
        across = kernels.ntk(model, part, train)[:, :, 0, 0]
        own = kernels.ntk(model, part)[:, :, 0, 0]
        result.append((own - across @ torch.linalg.solve(inside, across.T)).diagonal() / ridge)
    return torch.cat(result)

# %% solution-4: correct
def variance(model, x, train, ridge):
    rows = [flat_jacobian(model, part)[:, 0].square().sum(1) for part in x.split(20)]
    across = kernels.ntk(model, x, train)[:, :, 0, 0]
    inside = kernels.ntk(model, train)[:, :, 0, 0]
    inverse = torch.linalg.inv(inside + ridge * torch.eye(len(inside)).to(inside))
    return (torch.cat(rows) - (across @ inverse * across).sum(1)) / ridge

# %% solution-4: not so yet: the peak is below a tenth of P x P
def variance(model, x, train, ridge):
    rows = flat_jacobian(model, train)[:, 0]
    square = rows.T @ rows + ridge * torch.eye(rows.shape[1]).to(rows)
    solve = torch.linalg.inv(square)
    parts = [flat_jacobian(model, part)[:, 0] for part in x.split(10)]
    return torch.cat([(new @ solve * new).sum(1) for new in parts])

# %% solution-4: not so yet: it holds no kernel of N x N
# - [kernels.ntk(model, part)[:, :, 0, 0].diagonal() for part in x.split(25)]
# + [kernels.ntk(model, x)[:, :, 0, 0].diagonal()]

# %% solution-4: not so yet: it uses 'single' of the lesson
# - kernels.ntk(model, train, x)
# + kernels.ntk(single, train, x)

# %% solution-4: right shape, wrong values
# - (torch.cat(parts) - explained) / ridge
# + torch.cat(parts) - explained

# %% solution-4: wrong shape
# - (torch.cat(parts) - explained) / ridge
# + (torch.cat(parts) - explained)[:, None] / ridge

# %% solution-5: correct
def suspects(theta, signs, count):
    errors_without = []
    for i in range(len(signs)):
        rest = [j for j in range(len(signs)) if j != i]
        inside = theta[rest][:, rest] + torch.eye(len(rest)).to(theta)
        errors_without.append(signs[i] - theta[i, rest] @ torch.linalg.solve(inside, signs[rest]))
    return torch.stack(errors_without).abs().argsort(descending=True)[:count]

# %% solution-5: correct
def suspects(theta, signs, count):
    inverse = torch.linalg.inv(theta + 2 * torch.eye(len(theta)).to(theta))
    says = signs - inverse @ signs / inverse.diagonal()
    return (says * signs).topk(count, largest=False).indices

# %% solution-5: not so yet: 70 of 100 are found
def suspects(theta, signs, count):
    return theta.diagonal().topk(count).indices

# %% solution-5: not so yet: each is named once
def suspects(theta, signs, count):
    inverse = torch.linalg.inv(theta + torch.eye(len(theta)).to(theta))
    return (inverse @ signs / inverse.diagonal()).abs().topk(1).indices.repeat(count)

# %% solution-5: wrong shape
# -     return (inverse @ signs / inverse.diagonal()).abs().topk(1).indices.repeat(count)
# +     return (inverse @ signs / inverse.diagonal()).abs().topk(count // 2).indices
