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
