# %% solution-1: correct
def loss_changes(model, inputs, targets, rate):
    rows = []
    for x, target in zip(inputs, targets, strict=True):
        loss = F.cross_entropy(model(x[None]), target[None])
        slopes = torch.autograd.grad(loss, list(model.parameters()))
        rows.append(torch.cat([slope.flatten() for slope in slopes]))
    return torch.stack([torch.stack([row @ (-rate * move) for move in rows]) for row in rows])

# %% solution-1: correct
def loss_changes(model, inputs, targets, rate):
    logits = model(inputs).detach()
    slopes = logits.softmax(dim=1) - F.one_hot(targets, logits.shape[1])
    theta = tangent_kernel(model, inputs, inputs)
    return -rate * torch.einsum("ia,ijab,jb->ij", slopes, theta, slopes)

# %% solution-1: right shape, wrong values: 64 samples
# - return F.cross_entropy(functional_call(model, params, (x[None],)), target[None])
# + logits = functional_call(model, params, (x[None],))
# +         return -logits.gather(1, target[None, None]).squeeze()

# %% solution-2: correct
def loo_errors(theta, residual, ridge):
    n, y = residual.shape
    matrix, eye = as_matrix(theta), torch.eye(n * y).to(theta)
    leverage = torch.linalg.solve(matrix + ridge * eye, matrix)
    blocks = [leverage[i * y : (i + 1) * y, i * y : (i + 1) * y] for i in range(n)]
    each = zip(blocks, residual, strict=True)
    return torch.stack([torch.linalg.inv(eye[:y, :y] - block) @ r for block, r in each])

# %% solution-2: correct
# - torch.linalg.solve(ridge * blocks, residual)
# + torch.einsum("iab,ib->ia", blocks.inverse(), residual) / ridge

# %% solution-2: right shape, wrong values
def loo_errors(theta, residual, ridge):
    n, y = residual.shape
    inverse = (as_matrix(theta) + ridge * torch.eye(n * y).to(theta)).inverse()
    return residual / (ridge * inverse.diagonal().view(n, y))

# %% solution-2: right shape, wrong values: errors, against 6 fits
# - as_matrix(theta)
# + as_matrix(theta.transpose(2, 3))

# %% solution-3: correct
def variances(own, across, inside, ridge):
    inverse = torch.linalg.inv(inside + ridge * torch.eye(len(inside)).to(inside))
    return (own - torch.einsum("nm,mk,nk->n", across, inverse, across)) / ridge

# %% solution-3: correct
# - (across * torch.linalg.solve(matrix, across.T).T).sum(dim=1)
# + torch.linalg.solve_triangular(
# +         torch.linalg.cholesky(matrix), across.T, upper=False
# +     ).square().sum(dim=0)

# %% solution-3: right shape, wrong values: 60 variances
# - torch.linalg.solve(matrix, across.T)
# + torch.linalg.solve(matrix - ridge * torch.eye(len(inside)).to(inside) / 2, across.T)

# %% solution-4: correct
def gauss_newton_step(model, x, y, ridge):
    theta, residual = as_matrix(kernels.ntk(model, x)), (y - model(x)).detach()
    alpha = torch.linalg.solve(theta + ridge * torch.eye(len(theta)).to(theta), residual.flatten())
    pulled = torch.autograd.grad(model(x), list(model.parameters()), alpha.view_as(residual))
    return dict(zip(detached(model), pulled, strict=True))

# %% solution-4: correct
def gauss_newton_step(model, x, y, ridge):
    J, alpha = jacobians(model, x).flatten(0, 1), (y - model(x)).detach().flatten()
    step = J.T @ torch.linalg.solve(J @ J.T + ridge * torch.eye(len(J)).to(J), alpha)
    parts = step.split([p.numel() for p in model.parameters()])
    return {n: d.view(p.shape) for (n, p), d in zip(model.named_parameters(), parts, strict=True)}

# %% solution-4: right shape, wrong values: 40 samples
# - ridge * torch.eye
# + ridge / len(x) * torch.eye

# %% solution-4: not so yet: it changed cases
# -     return step
# +     model.load_state_dict({name: p + step[name] for name, p in detached(model).items()})
# +     return step
