"""The rules of the house, each a function from one module's syntax tree to what breaks it, with the reason.

They look at names as written, so they are simple and can be fooled by somebody who wants to; they are for those who
forgot. ``test_fleet_house.py`` applies them to ``training/`` and tries each on a snippet that breaks it.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property


@dataclass(frozen=True)
class Module:
    """A source file under its dotted name."""

    name: str
    tree: ast.Module
    lines: int = 0

    @classmethod
    def of(cls, name, source):
        return cls(name, ast.parse(source), source.count("\n"))

    @cached_property
    def nodes(self):
        return list(ast.walk(self.tree))

    def is_any(self, patterns):
        return any(fnmatchcase(self.name, pattern) for pattern in patterns.split())


def modules(root, folder="training"):
    """Every module in ``root / folder``."""
    found = []
    for path in sorted((root / folder).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        found.append(Module.of(name, path.read_text(encoding="utf-8")))
    return found


def imported(nodes):
    """Every import with its line; ``from a import b`` counts as ``a.b``, which may be a module or a name in one."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def within(name, packages):
    """Return True when ``name`` is one of these packages or lies in one."""
    return any(name == each or name.startswith(each + ".") for each in packages.split())


def fleet(*names):
    return " ".join(f"training.fleet.{name}" for text in names for name in text.split())


# ── who may import whom ─────────────────────────────────────────────────────────────────────

HEAVY = "torch xgboost numpy polars sklearn scipy pandas pyarrow"

# Each package of the fleet, and those of the fleet that it may import. An arrow runs down this list, never up.
MAY_IMPORT = {
    "scheduling": "",
    "wire": "",
    "database": "",
    "process": "",
    "client": "wire",
    "capability": "process",
    "queue": "scheduling database",
    "store": "scheduling wire",
    "manifest": "scheduling wire capability",
    "service": "scheduling wire database queue store manifest capability",
    "pages": "scheduling wire service",
    "receiver": "scheduling wire database queue store manifest capability process service pages",
    "recovery": "scheduling wire database queue store manifest service",
    "worker": "scheduling wire client capability process",
    "install": "wire client capability worker",
    "join": "wire client",
    "cli": "scheduling wire client manifest service pages recovery",
}


@dataclass(frozen=True)
class Fence:
    """A rule: ``who`` (patterns) may import nothing of ``what`` (packages), but ``except_`` for these."""

    who: str
    what: str
    why: str
    except_: str = ""


def side_fences():
    """One fence for each row of ``MAY_IMPORT``."""
    for name, allowed in MAY_IMPORT.items():
        others = [each for each in MAY_IMPORT if each not in {name, *allowed.split()}]
        why = f"{name} knows {allowed.replace(' ', ', ') or 'neutral modules'} alone"
        yield Fence(fleet(name, f"{name}.*"), fleet(*others), why)


FENCES = (
    *side_fences(),
    Fence("training.fleet*", HEAVY, "a Pi coordinates and drives trainers without any of them"),
    Fence(
        "training.fleet*",
        "training.data training.watch training.trainer",
        "trainers are commands to the fleet: arguments, exit code, files, lines on standard output",
    ),
    Fence("training.trainer*", "training.fleet", "a trainer runs alone"),
    Fence("training.trainer*", "training.watch", "only watch reads a host"),
    Fence("training.data.executors*", "training.fleet training.data training.trainer training.watch",
          "an engine knows no task", "training.data.executors"),
    Fence("training.data.executors*", HEAVY, "an engine carries bytes"),
    Fence("training*", "distributed dask ray submitit", "one adapter for each engine", "training.data.executors.on_*"),
    Fence("training.data*", "training.fleet training.trainer training.watch", "data knows no user"),
    Fence("training.watch.recording*", "training.fleet training.trainer", "the recorder only writes episodes"),
    Fence(fleet("scheduling.resources"), "training", "nouns know no rule", fleet("scheduling.resources")),
    Fence(fleet("scheduling.job"), "training", "nouns know no rule",
          fleet("scheduling.resources") + " training.strict_json training.contract training.frozen"),
    Fence(fleet("scheduling.booking"), "training", "a decision knows nouns only",
          fleet("scheduling.job scheduling.resources") + " training.families"),
    Fence(fleet("scheduling.policy"), "training", "a decision knows nouns, and what fits beside others",
          fleet("scheduling.job scheduling.booking") + " training.contract training.frozen training.strict_json"),
    Fence(fleet("scheduling.quarantine"), "training", "a decision knows nouns only",
          fleet("scheduling.job scheduling.policy") + " training.contract training.frozen"),
    Fence("training.clock", "training", "the clock stands below everything"),
    Fence(fleet("scheduling.*"), "msgspec starlette cryptography psutil", "a decision needs no library"),
    Fence(fleet("worker worker.* client.*"), fleet("wire.messages wire.views wire.routes"),
          "a worker is small: its own messages are in attempts", fleet("client.retry")),
    Fence(fleet("queue.* store.*"), fleet("wire.messages wire.views"), "not bound to the wire"),
    Fence(fleet("service service.*"), "starlette uvicorn sqlite3", "calls know no HTTP and no dialect"),
    Fence("training.fleet*", "sqlite3", "one adapter speaks to SQLite", fleet("database.sqlite database.seals")),
    Fence("training*", "requests httpx aiohttp urllib3", "HTTP costs no dependency here"),
)  # fmt: skip


def keeps_its_layer(module):
    for fence in FENCES:
        if module.is_any(fence.who) and not module.is_any(fence.except_ or "-"):
            for line, name in imported(module.nodes):
                if within(name, fence.what) and not within(name, fence.except_ or "-"):
                    yield line, f"imports {name}: {fence.why}"


# ── who may touch what ──────────────────────────────────────────────────────────────────────

CLOCK_READS = re.compile(
    r"time\.(time|monotonic|perf_counter|process_time|thread_time|clock_gettime)(_ns)?"
    r"|time\.(localtime|gmtime|ctime|asctime|strftime)"
    r"|(datetime\.)?(datetime|date)\.(now|utcnow|today)"
)


def reads_no_clock(module):
    why = "only training/clock.py reads clocks; take a Clock, so that tests and the simulation own time"
    if module.name == "training.clock":
        return
    for node in module.nodes:
        if isinstance(node, ast.Attribute) and CLOCK_READS.fullmatch(ast.unparse(node)):
            yield node.lineno, f"uses {ast.unparse(node)}: {why}"
    for line, name in imported(module.nodes):
        if CLOCK_READS.fullmatch(name):
            yield line, f"imports {name}: {why}"


SQL = re.compile(
    r"\s*(SELECT\s.+\sFROM\s|INSERT\s+INTO\s|UPDATE\s+\w+\s+SET\s|DELETE\s+FROM\s|WITH\s+\w+\s+AS\s"
    r"|(CREATE|DROP|ALTER)\s+(TABLE|INDEX|UNIQUE|TRIGGER|VIEW)\s|PRAGMA\s|BEGIN\s+IMMEDIATE|SAVEPOINT\s)",
    re.IGNORECASE | re.DOTALL,
)
ADAPTER_MAY = re.compile(r"\s*(PRAGMA|BEGIN|COMMIT|ROLLBACK|SAVEPOINT|RELEASE)\b")


def holds_no_sql(module):
    # The recorded workloads that *are* a database at work speak its language; a user's table is asked in DuckDB's.
    if module.is_any("training.watch.recording.behaviours_* training.data.ingest.cells"):
        return
    for node in module.nodes:
        text = node.value if isinstance(node, ast.Constant) else None
        if not isinstance(text, str) or not SQL.match(text):
            continue
        if not (
            module.is_any("training.fleet.database.sqlite training.fleet.database.seals") and ADAPTER_MAY.match(text)
        ):
            yield node.lineno, f"holds SQL ({text.strip()[:30]}…): statements live in sql/, named"


STARTS = re.compile(
    r"(subprocess|multiprocessing|pty)(\..*)?"
    r"|os\.(fork\w*|exec\w+|spawn\w+|posix_spawn\w*|system|popen|startfile)"
    r"|asyncio\.create_subprocess_\w+|asyncio\.subprocess(\..*)?"
    r"|concurrent\.futures\.(process(\..*)?|ProcessPoolExecutor)"
)
STARTERS = fleet("process.supervise process.posix process.windows process.launcher process.parents process.warm")
STARTERS += " " + fleet("process.inhibitor capability.cuda capability.owner install.system receiver.notify.senders")
STARTERS += " " + fleet("install.fresh receiver.wheel")
STARTERS += " training.data.executors.on_processes training.data.executors.on_slurm"
STARTERS += " training.data.ingest.recorders.recorded"
STARTERS += " training.watch.recording.record"
STARTERS += " training.watch.recording.stage training.watch.recording.behaviours* training.watch.calls"


def starts_no_process(module):
    if not module.is_any(STARTERS):
        why = "only supervision, launchers, the warm parent, probes, the installer and the recorder start processes"
        yield from ((line, f"uses {name}: {why}") for line, name in starts(module))


def starts(module):
    """Wherever a module imports or uses what starts processes."""
    for line, name in imported(module.nodes):
        if STARTS.fullmatch(name):
            yield line, name
    for node in module.nodes:
        if isinstance(node, ast.Attribute) and STARTS.fullmatch(ast.unparse(node)):
            yield node.lineno, ast.unparse(node)


# A module that says so in its docstring is checked, and so is every module of a package that says so in its own.
SAYS_PURE = re.compile(r"\bPURE\b|\bPure\b|\bare pure\b|\bpure (?:functions|checks)\b")
PURE_PACKAGES = fleet("scheduling.*", "worker.state.*")
IMPURE = """io os pathlib shutil tempfile socket ssl select subprocess threading asyncio concurrent queue sqlite3
  time random secrets uuid logging urllib http platform getpass multiprocessing training.clock sys"""
PURE_PARTS = "urllib.parse pathlib.PurePath pathlib.PurePosixPath pathlib.PureWindowsPath"
IMPURE_CALLS = frozenset({"open", "print", "input", "breakpoint", "exec", "eval", "__import__"})


def stays_pure(module):
    if not (SAYS_PURE.search(ast.get_docstring(module.tree) or "") or module.is_any(PURE_PACKAGES)):
        return
    why = "this module decides; I/O, time and chance come in as arguments"
    for line, name in imported(module.nodes):
        if within(name, IMPURE) and not within(name, PURE_PARTS):
            yield line, f"imports {name}: {why}"
    for node in module.nodes:
        if isinstance(node, ast.Call) and ast.unparse(node.func) in IMPURE_CALLS:
            yield node.lineno, f"calls {ast.unparse(node.func)}: {why}"


def writes_files_one_way(module):
    """``a.replace(b)`` of one argument renames a file: a text's takes two."""
    # The launcher imports nothing of ours; a recorded workload is to look like anybody's program.
    if module.is_any("training.files training.fleet.process.launcher training.watch.recording.behaviours*"):
        return
    why = "files.write_whole and settle wait for a reader on Windows, and sync file and folder"
    for node in module.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called = ast.unparse(node.func)
            by_path = node.func.attr in {"replace", "rename"} and len(node.args) == 1
            if called in {"os.replace", "os.rename", "os.fsync"} or (by_path and not node.keywords):
                yield node.lineno, f"calls {called}: {why}"


POSIX_ONLY = "fcntl grp pwd resource termios tty pty syslog posix"


def imports_on_windows(module):
    """Refuse imports of POSIX-only modules outside functions, but in a file that says so."""
    if module.name.endswith((".posix", "_posix")):
        return
    deferred = {
        id(inner)
        for node in module.nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
    }
    for node in module.nodes:
        if isinstance(node, ast.Import | ast.ImportFrom) and id(node) not in deferred:
            for line, name in imported([node]):
                if within(name, POSIX_ONLY):
                    yield line, f"imports {name}, which Windows lacks: do it where it is needed"


NARROWS = re.compile(r"[\w.]+ is not None|isinstance\(.*\)")


def asserts_no_promise(module):
    for node in module.nodes:
        if isinstance(node, ast.Assert) and (node.msg or not NARROWS.fullmatch(ast.unparse(node.test))):
            yield node.lineno, "an assert may only narrow a type, without a text: python -O leaves it out; use certain"
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "__doc__":
            yield node.lineno, "python -OO leaves docstrings out: __doc__ is None"


OPENERS = re.compile(r"(?:PURE: )?(?:Wh(?:at|ether|o|ose|om|oever|atever|ere|ich|y|en)|How|That)\b", re.IGNORECASE)


def opens_plainly(module):
    """Refuse docstrings that begin with a clause, which hides what the thing is or does."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in module.nodes:
        if isinstance(node, documented) and (found := OPENERS.match(ast.get_docstring(node) or "")):
            line = node.body[0].lineno
            yield line, f"a docstring begins with {found[0]!r}: begin with a verb in the imperative or a noun phrase"


def longest(found, count=8):
    """The longest modules with their lines: a report for people, who judge; no test fails by it."""
    ranked = sorted(found, key=lambda module: -module.lines)
    return [f"{module.lines:5} {module.name}" for module in ranked[:count]]


RULES = (
    asserts_no_promise,
    keeps_its_layer,
    reads_no_clock,
    holds_no_sql,
    starts_no_process,
    stays_pure,
    writes_files_one_way,
    imports_on_windows,
    opens_plainly,
)


# ── names in prose ──────────────────────────────────────────────────────────────────────────

PATHS = re.compile(r"(?<![\w/.*<>{}~$:-])(?:\.\./|\./)*((?:[\w.-]+/)*[\w-]+\.(?:py|md|sql|toml))\b(?![\w(])")
DOTTED = re.compile(r"(?<![\w/.-])(?:training|tests|fuzz|bench)(?:\.\w+)+(?![\w*])")
SNAKE = re.compile(r"(?<![\w/.<-])_?[a-z][a-z0-9]*(?:_[a-z0-9]+)+(?![\w/-])")
WORDS = re.compile(r"[A-Za-z0-9_]+")
LEXED = re.compile(  # a string or a comment, whichever begins first; a string alone on its lines is a docstring
    r'(?P<alone>^[ \t]*)?[rbfRBF]{0,2}(?P<text>"""(?:[^\\]|\\.)*?"""|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\')'
    r"|(?P<comment>#[^\n]*)",
    re.MULTILINE | re.DOTALL,
)
# A person's own files, another project, words of other programs and f-strings, parts of names.
FOREIGN = frozenset(
    {
        *(
            "worker_health",
            "worker_state",
            "etc/training_manifest.toml",
            "plan.toml",
            "coverage.py",
            "s_client",
            "not_answered",
        ),
        *("proc_pid_mountinfo", "pressure_cpu", "pressure_io", "pressure_memory", "_per_h"),
        *("command_user", "respawn_delay"),
    }
)


class Names:
    """Every file and every word of the code, to tell which names in prose mean nothing any more."""

    def __init__(self, texts, past=()):
        """Take each file's text by its path from the root. Pages, the Makefile, docstrings and comments are prose, but
        for files below ``past``, which speak of what was.
        """
        self.prose = []
        self._paths = set(FOREIGN)
        self._words = set(FOREIGN)
        for path, text in texts.items():
            folders = path.split("/")
            for start in range(len(folders)):
                self._paths.update("/".join(folders[start:end]) for end in range(start + 1, len(folders) + 1))
            self._words.add(folders[-1].partition(".")[0])
            if path.startswith(past):
                continue
            if path.endswith((".md", "Makefile")):
                self.prose.append((path, 1, text))
            elif path.endswith(".py"):
                self._words.update(WORDS.findall(self._without_prose(path, text)))
            else:
                self._words.update(WORDS.findall(text))

    def _without_prose(self, path, text):
        """The code without its docstrings and comments, which are kept as prose. A real parser would take seconds."""

        def sort_out(found):
            if found["comment"] is None and not (found["alone"] is not None and '"""' in found[0]):
                return found[0]
            self.prose.append((path, 1 + text.count("\n", 0, found.start()), found[0]))
            return ""

        return LEXED.sub(sort_out, text)

    def mean_nothing(self):
        """Each stale name with its place: a file, a module, or a word with an underscore that no code knows."""
        for path, line, text in self.prose:
            stale = {found[1] for found in PATHS.finditer(text)} - self._paths
            stale |= {word for word in SNAKE.findall(text) if word not in self._words}
            stale |= {name for name in DOTTED.findall(text) if not self._knows(name)}
            for name in stale:
                yield f"{path}:{line + text[: text.index(name)].count(chr(10))} {name}"

    def _knows(self, name):
        parts = name.split(".")
        if name in self._paths:  # a file that is called so
            return True
        for end in range(len(parts), 0, -1):
            module = "/".join(parts[:end])
            if module in self._paths or f"{module}.py" in self._paths:
                return all(part in self._words for part in parts[end:])
        return False


# ── packages ────────────────────────────────────────────────────────────────────────────────


def room(name):
    """The file or folder, directly below ``training.fleet`` or ``training``, that a module lies in."""
    return ".".join(name.split(".")[: 3 if within(name, "training.fleet") else 2])


def circles(found):
    """Every group of modules each of which imports the others, at any distance and also inside functions.

    Tarjan, "Depth-first search and linear graph algorithms" (1972): strongly connected components.
    """
    names = {module.name for module in found}
    arrows = {}
    for module in found:
        arrows[module.name] = set()
        for _, name in imported(module.nodes):
            while name and name not in names:
                name = name.rpartition(".")[0]
            if name and name != module.name:
                arrows[module.name].add(name)
    order = {}
    lowest = {}
    path = []

    def visit(name):
        order[name] = lowest[name] = len(order)
        path.append(name)
        for other in sorted(arrows[name]):
            if other not in order:
                yield from visit(other)
            if other in path:
                lowest[name] = min(lowest[name], lowest[other])
        if lowest[name] == order[name]:
            group = path[path.index(name) :]
            del path[path.index(name) :]
            if len(group) > 1:
                yield sorted(group)

    for name in sorted(arrows):
        if name not in order:
            yield from visit(name)


def each_other(found):
    """Every two rooms that import each other, with the modules that do."""
    arrows = {}
    for module in found:
        here = room(module.name)
        for line, name in imported(module.nodes):
            if within(name, "training") and (there := room(name)) != here:
                arrows.setdefault((here, there), []).append(f"{module.name}:{line}")
    for here, there in sorted(arrows):
        if here < there and (there, here) in arrows:
            yield f"{here} and {there}: {arrows[here, there]} against {arrows[there, here]}"
