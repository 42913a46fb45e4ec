# Hidden tests, as `make student HIDDEN=tests/lessons/hidden` reads them: an example for everybody.

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
grads = random_grads(5, 7, torch.float64)
owners = torch.tensor([3, 3, 3, 3, 3])  # one person
right = person_by_person(grads, owners, 0.5)

with exercises.check("Exercise 2", clip_by_person, grads=grads) as answer:
    exercises.expect("one person", answer(grads, owners, 0.5), right, tolerance=1e-5)
### END HIDDEN TESTS
