"""Programs that feed what came from elsewhere to the code that reads it: ``python -m fuzz manifest --runs 10000``.

Each target is one function, ``one_input(data)``; whatever it raises is a fault. Two engines drive it: a plain seeded
mutator over ``corpus/``, many times faster, and atheris (libFuzzer), which looks at the way that each input takes.
``record.json`` says how many inputs each target has had.
"""

TARGETS = ("manifest", "wire", "index", "renderer", "unpack", "model")
