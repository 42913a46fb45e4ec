# Hidden tests, as `make student HIDDEN=tests/lessons/hidden` reads them: an example for everybody.

### BEGIN HIDDEN TESTS
# check-1
narrow = nn.Sequential(nn.Conv2d(1, 2, 5, stride=5), nn.Flatten(), nn.Linear(50, 10))
narrow.to(where)[0].weight.requires_grad_(False)  # the first of the four, its bias is trained
three_images, three_labels = data.load_batch(dataset, 3, where)
case = legacy_gradients(narrow, three_images, three_labels)
right = loop_grads(narrow, F.cross_entropy, three_images, three_labels)

with exercises.check("Exercise 1", named_gradients, model=narrow) as answer:
    exercises.expect("gradients of a third model", answer(*case), right)
### END HIDDEN TESTS

### BEGIN HIDDEN TESTS
# check-2
deep = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
deep[1][0].weight.requires_grad_(False)
f_deep, _, _ = functorch.make_functional_with_buffers(deep)
later = reordered(copy.deepcopy(deep))
for parameter in later.parameters():
    parameter.data -= 1
right = tuple(later.get_parameter(name).detach() for name in f_deep.param_names)

with exercises.check("Exercise 2", refreshed, model=later) as answer:
    exercises.expect("parameters of a nested model", answer(f_deep, later), right, tolerance=0.0)
### END HIDDEN TESTS


### BEGIN HIDDEN TESTS
# check-3
def linear_start():  # all is trained, with momentum
    one = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).to(where, torch.float64)
    for parameter in one.parameters():
        values = torch.linspace(-0.1, 0.1, parameter.numel())
        parameter.data = values.view_as(parameter).to(parameter)
    return one, torch.optim.SGD(one.parameters(), lr=0.3, momentum=0.9)


sizes = [1, 4, 2]
others = list(zip(few_images.split(sizes), few_labels.split(sizes), strict=True))
log, trained = log_of(*linear_start(), others)

with exercises.check("Exercise 3", norm_history, batches=others) as answer:
    mine, my_optimizer = linear_start()
    history = answer(mine, my_optimizer, others)
    exercises.expect("a linear model", history, log.float(), tolerance=1e-4)
    now = {name: p.detach() for name, p in mine.named_parameters()}
    exercises.expect("its parameters", now, trained, tolerance=1e-4)
### END HIDDEN TESTS
