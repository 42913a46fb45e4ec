# Answers and their verdicts, as tests/support/answers.py reads them. A wrong one breaks one demand.

# %% solution-1: correct
def loss_changes(model, x, y, rate):
    rows = []
    for sample, label in zip(x, y, strict=True):
        loss = F.cross_entropy(model(sample[None]), label[None])
        slopes = torch.autograd.grad(loss, list(model.parameters()))
        rows.append(torch.cat([slope.flatten() for slope in slopes]))
    moves = [-rate * row for row in rows]
    return torch.stack([torch.stack([row @ move for move in moves]) for row in rows])

# %% solution-1: correct
def loss_changes(model, x, y, rate):
    logits = model(x).detach()
    slopes = logits.softmax(dim=1) - F.one_hot(y, logits.shape[1])
    return -rate * torch.einsum("ia,ijab,jb->ij", slopes, kernels.ntk(model, x), slopes)

# %% solution-1: right shape, wrong values: 64 samples
# uphill
# - -rate * flat
# + rate * flat

# %% solution-1: right shape, wrong values: 64 samples
# steps on the mean loss
# - flat @ flat.T
# + flat @ flat.T / len(x)

# %% solution-1: right shape, wrong values: 64 samples
# of a step of rate 1
# - -rate * flat
# + -flat

# %% solution-1: right shape, wrong values: 64 samples
# of the logits of the labels
# - return F.cross_entropy(functional_call(model, params, (sample[None],)), label[None])
# + logits = functional_call(model, params, (sample[None],))
# +         return -logits.gather(1, label[None, None]).squeeze()

# %% solution-1: wrong shape: 64 samples, against real steps: expected (64, 64), got (64,)
# each sample on itself alone
# - flat @ flat.T
# + flat.square().sum(dim=1)

# %% solution-1: your answer raised RuntimeError: index 4 is out of bounds
# - (params_of(model), x, y)
# + (params_of(model), x, classes[: len(x)])

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

# %% solution-4: your answer raised RuntimeError: mat1 and mat2
# - kernels.ntk(model, train, x)
# + kernels.ntk(single, train, x)

# %% solution-4: right shape, wrong values
# - (torch.cat(parts) - explained) / ridge
# + torch.cat(parts) - explained

# %% solution-4: wrong shape
# - (torch.cat(parts) - explained) / ridge
# + (torch.cat(parts) - explained)[:, None] / ridge

# %% solution-5: correct
def gauss_newton_step(model, x, y, ridge):
    theta = matrix_of(kernels.ntk(model, x, method="structured"))
    residual = (y - model(x)).detach()
    alpha = torch.linalg.solve(theta + ridge * torch.eye(len(theta)).to(theta), residual.flatten())
    pulled = torch.autograd.grad(model(x), list(model.parameters()), alpha.view_as(residual))
    return dict(zip(params_of(model), pulled, strict=True))

# %% solution-5: correct
def gauss_newton_step(model, x, y, ridge):
    alpha = kernels.solve(kernels.ntk(model, x), y - model(x).detach(), ridge=ridge)

    def weighted(params):
        return (alpha * functional_call(model, params, (x,))).sum()

    return grad(weighted)(params_of(model))

# %% solution-5: not so yet: the peak is below half of the Jacobian: measured
def gauss_newton_step(model, x, y, ridge):
    J = flat_jacobian(model, x).flatten(0, 1)
    residual = (y - model(x)).detach().flatten()
    alpha = torch.linalg.solve(J @ J.T + ridge * torch.eye(len(J)).to(J), residual)
    params = params_of(model)
    parts = (alpha @ J).split([p.numel() for p in params.values()])
    return {name: part.view_as(params[name]) for name, part in zip(params, parts, strict=True)}

# %% solution-5: not so yet: the peak is below half of the Jacobian: measured
# by the matrix of P x P
# -     alpha = torch.linalg.solve(J @ J.T + ridge * torch.eye(len(J)).to(J), residual)
# +     square = J.T @ J + ridge * torch.eye(J.shape[1]).to(J)
# - (alpha @ J).split
# + torch.linalg.solve(square, J.T @ residual).split

# %% solution-5: right shape, wrong values: 60 samples
# - (y - values).detach()
# + (values - y).detach()

# %% solution-5: right shape, wrong values: 60 samples
# a step of gradient descent
# - kernels.solve(kernels.ntk(model, x), (y - values).detach(), ridge=ridge)
# + (y - values).detach() / ridge

# %% solution-5: right shape, wrong values: 60 samples
# the ridge of a mean
# - ridge=ridge)
# + ridge=ridge / len(x))

# %% solution-5: wrong type: 60 samples, against the matrix of P x P: expected a dict, got Tensor
# -     return step
# +     return torch.cat([part.flatten() for part in step.values()])

# %% solution-5: not so yet: it changed cases
# it takes the step
# -     return step
# +     model.load_state_dict({name: p + step[name] for name, p in params_of(model).items()})
# +     return step

# %% solution-5: right shape, wrong values: 60 samples
# - ridge=ridge)
# + ridge=ridge_used)
