# Hidden tests, as `make student HIDDEN=tests/hidden` reads them: an example for everybody.

### BEGIN HIDDEN TESTS
# check-1
case = torch.tensor([9.0, -0.1, -9.0, 0.3], dtype=torch.float64), 0.25, 2.0, 3
right = torch.tensor(0.15 / 3, dtype=torch.float64)  # 0.25 - 0.1 - 0.25 + 0.25

with exercises.check("Exercise 1", private_average, numbers=case[0]) as answer:
    plain = answer(*case[:2], 0.0, 3, torch.Generator())
    exercises.expect("clipped on both sides", plain, right, tolerance=1e-5)
    std = ((averages(answer, case, 2000) - right) * 3 / 0.5).std().item()
    exercises.require("the noise has its deviation", abs(std - 1) < 0.08, measured=f"{std:.2f}")
### END HIDDEN TESTS

### BEGIN HIDDEN TESTS
# check-2
grads_of = random_grads(5, {"only": (7,)}, torch.float64)
owners = torch.tensor([3, 3, 3, 3, 3])  # one person
right = person_by_person(grads_of, owners, 0.5)

with exercises.check("Exercise 2", clip_by_person, grads=grads_of) as answer:
    exercises.expect("one person", answer(grads_of, owners, 0.5), right, tolerance=1e-5)
### END HIDDEN TESTS

### BEGIN HIDDEN TESTS
# check-3
images_of = torch.eye(3, dtype=torch.float64)[:2] - 0.5
each = torch.tensor([[1.0, -2, 0, 0, 3, 0], [0, 0, 5, -1, 7, 0]]).to(images_of)
mean = each.T @ images_of, each.sum(dim=0)

with exercises.check("Exercise 3", read_images, mean=mean) as answer:
    read = answer(*mean)
    exercises.expect_shape("two images", read, (2, 3))
    in_order = read[torch.cdist(images_of, read).argmin(dim=1)]
    exercises.expect("both images", in_order, images_of)
### END HIDDEN TESTS


### BEGIN HIDDEN TESTS
# check-4
def tenth_of_the_noise(number):
    chance = torch.Generator().manual_seed(number)

    def release(rows):
        noise = noise_for_one * torch.randn(700, generator=chance)
        return (clip(rows).sum(dim=0) + 0.1 * noise) / 350

    return release


def bounds(answer, make):
    # The coins have seeds of their own: those of the noise would make it follow them.
    return [answer(make(n), 700, torch.Generator().manual_seed(100 + n)) for n in range(20, 25)]


with exercises.check("Exercise 4", audited) as answer:
    highest = max(bounds(answer, lambda number: make_release("right", number, 700)[0]))
    exercises.require("right: below 1", highest < 1, measured=f"{highest:.2f}")
    lowest = min(bounds(answer, tenth_of_the_noise))
    exercises.require("a tenth of the noise: above 1", lowest > 1, measured=f"{lowest:.2f}")
### END HIDDEN TESTS
