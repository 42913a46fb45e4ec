# Wrong answers: the id of the solution that each stands for, and the verdict it gets.

# %% solution-1: right shape, wrong values
class MendedInk(limits.Classifier):
    def forward(self, images):
        return super().forward(images) * images.mean(dim=(1, 2, 3))[:, None]


# %% solution-1: not so yet: nothing to diagnose
class MendedInk(Ink):
    pass


# %% solution-2: right shape, wrong values
def weighted_terms(model, images, labels, weights):
    return gradients.func_gradients(model, F.cross_entropy, images, labels)


# %% solution-3: wrong shape
def grads_and_logits(model, images, labels):
    grads = gradients.func_gradients(model, F.cross_entropy, images, labels)
    return grads, model(images)[:, None]


# %% solution-3: right shape, wrong values
def grads_and_logits(model, images, labels):
    grads = gradients.func_gradients(model, F.cross_entropy, images, labels)
    return grads, model(images).softmax(dim=1)


# %% solution-1: your answer raised RuntimeError
class MendedInk(limits.Classifier):
    def forward(self, images):
        ink = images[images > 0.5].view(len(images), -1)
        return super().forward(images) * ink.mean(dim=1, keepdim=True)


# %% solution-2: wrong type: gradients: expected a dict, got NoneType: the function returned nothing
def weighted_terms(model, images, labels, weights):
    gradients.func_gradients(model, F.cross_entropy, images, labels)


# %% solution-2: wrong type: gradients: expected a dict, got list
def weighted_terms(model, images, labels, weights):
    return [*gradients.func_gradients(model, F.cross_entropy, images, labels).values()]


# %% solution-2: not so yet: it changed weights in place
def weighted_terms(model, images, labels, weights):
    weights /= weights[labels].sum()

    def loss_fn(predictions, targets):
        return F.cross_entropy(predictions, targets, weight=weights, reduction="sum")

    return gradients.func_gradients(model, loss_fn, images, labels)


# %% solution-3: wrong dtype
def grads_and_logits(model, images, labels):
    grads = gradients.func_gradients(model, F.cross_entropy, images, labels)
    return grads, model(images).float()
