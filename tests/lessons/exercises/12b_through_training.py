# %% solution-1: correct
def step_effects(network, theta, train_set, test_set, rate):  # by the gradients of the losses
    def loss_of_one(theta, image, label):
        return F.cross_entropy(network(theta, image.unsqueeze(0)), label.unsqueeze(0))

    loss_grads = vmap(grad(loss_of_one), in_dims=(None, 0, 0))(theta, *train_set)
    return -rate * loss_grads @ per_sample_grads(network, theta, test_set).T

# %% solution-1: correct
def step_effects(network, theta, train_set, test_set, rate):  # through the step itself
    images, labels = train_set

    def margins_after_step(weights):
        def loss(theta):
            losses = F.cross_entropy(network(theta, images), labels, reduction="none")
            return weights @ losses

        return compute_margins(network, theta - rate * grad(loss)(theta), test_set)

    return jacrev(margins_after_step)(torch.zeros(len(images)).to(theta)).T

# %% solution-1: right shape, wrong values: 60 samples
# - one_minus_p(network, theta, train_set)
# + one_minus_p(network, theta, test_set)
# - factors[:, None] * (grads
# + factors * (grads

# %% solution-1: right shape, wrong values: 60 samples
# - rate * factors[:, None]
# + rate / len(grads) * factors[:, None]

# %% solution-2: correct
def reweighted(validation_loss, weights, amount):
    at = weights.detach().clone().requires_grad_()
    (slopes,) = torch.autograd.grad(validation_loss(at), at)
    return torch.relu(weights - amount * len(slopes) * F.normalize(slopes, p=1, dim=0))

# %% solution-2: correct
def reweighted(validation_loss, weights, amount):
    slopes = torch.func.jacrev(validation_loss)(weights)
    return (weights - amount * slopes / slopes.abs().mean()).clip(0)

# %% solution-2: right shape, wrong values: least squares
# - .clamp(min=0)
# +

# %% solution-2: right shape, wrong values: least squares
# - grad(validation_loss)(weights)
# + grad(validation_loss)(torch.ones_like(weights))
