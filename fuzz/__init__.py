"""Programs that feed what came from elsewhere to the code that reads it: ``python -m fuzz manifest --runs 10000``.

Each target is one function, ``one_input(data)``; whatever it raises is a fault. Two engines drive it: a plain seeded
mutator over ``corpus/``, for everybody's tests, and atheris (libFuzzer) for long runs.
"""

TARGETS = ("manifest", "wire", "index", "renderer", "unpack")
