"""Convert windows or samples that you already have into a data set that trainers read: the program of
``python -m training.data.ingest``.

    python -m training.data.ingest windows.npz --out-dir data/processed
    python -m training.data.ingest samples.csv --window-s 4 --stride-s 2 --out-dir data/processed
    python -m training.data.ingest --pcp /var/log/pcp/pmlogger/pi/20261101 --out-dir data/processed
    python -m training.data.ingest --prometheus http://localhost:9090 --labels-from incidents.csv --rest normal

The modules `npz`, `samples` (text and Parquet) and `recorders` describe the formats. Trainers read the result as they
read a build from own recordings. Exit codes: 0 done, 2 bad arguments, 65 data that cannot be used, 74 a file or folder
that cannot be written, 75 a folder into which another process writes a data set.
"""

import argparse
import csv
import json
import signal
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from training.clock import SystemClock
from training.command_line import parser_of
from training.contract import SCHEMA_FILE, VALIDATION_FILE, Exit
from training.data.alone import FolderBusy, alone, ended
from training.data.dataset import finish, other_data_set, remove_leftovers_of_build
from training.data.doubts.confounded import confounded, doubled_channels
from training.data.doubts.constant_values import filled_forward, one_sided, padding
from training.data.doubts.ids_and_totals import ids_and_totals
from training.data.doubts.label_copies import label_again
from training.data.doubts.other_units import other_units
from training.data.doubts.spelling import hosts_alike, unusual_hosts
from training.data.doubts.windows import WindowsInQuestion, doubts
from training.data.errors import DataError
from training.data.ingest.columns import Wanted
from training.data.ingest.copies import without_copies
from training.data.ingest.ingested import Ingested, SaidClasses, described, without_missing, write
from training.data.ingest.like import made_like
from training.data.ingest.npz import read_npz
from training.data.ingest.opened import check_archive
from training.data.ingest.recorders.prometheus import RangeQuery
from training.data.ingest.recorders.registry import OF_SERVERS, RECORDERS, Recorder
from training.data.ingest.references import set_apart
from training.data.ingest.roles import Role
from training.data.ingest.rows import WindowCut
from training.data.ingest.samples import Log, read_long, read_recorded
from training.data.ingest.several import HostFrom
from training.data.ingest.times import CHOICES
from training.data.meter import on_stderr
from training.data.missing import Missing, read_missing
from training.data.schema import FeatureSchema, Timing, read_schema
from training.data.scratch import ROOM, WorkingMemory
from training.data.summary import counts_of
from training.data.summary import read as read_understood
from training.hyper import fraction
from training.streams import complain, replace_unprintable

# Detectors of doubts: those of windows as they were measured, and those of what becomes of them.
OF_MEASURED = (ids_and_totals, label_again, one_sided, padding, filled_forward, doubled_channels, confounded)
OF_ALL = (hosts_alike, unusual_hosts, other_units)
# Options of tables alone, as the parser stores them.
OF_TABLES = (
    *(
        "window_s",
        "stride_s",
        "episode_s",
        "oracle",
        "time_format",
        "day",
        "labels_from",
        "rest",
        "columns",
        "decimal",
        "host_from",
        "points",
        "rows_are_windows",
    ),
    *(role.name for role in Role),
)
OF_CUT = ("window_s", "stride_s", "episode_s", "hz", "labels_from", "points", "KEY")
OF_SAMPLES = ("counter", "t_unit", "time_format", "day")
OF_LABELS = ("labels", "benign", "no_benign", "unlabelled", "all_labelled")
DAY_S = 86_400.0
DECIMALS = {"comma": ",", "point": "."}


def main(argv: Sequence[str] | None = None) -> int:
    replace_unprintable()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that unfinished files are removed
    args = _parser().parse_args(argv)
    replaced, schema = None, None
    try:
        room = ROOM._replace(unpacked_max=None if args.max_gib is None else args.max_gib * 2**30)
        room = room if args.json else room._replace(progress=on_stderr())
        windows = _prepared(args, room)
        rows, understood = described(windows)
        if not args.json:
            print("\n".join(understood.lines()), flush=True)
        if not args.dry_run:
            _say(args, f"describing {windows.X.shape[0]:,} windows …")
            with alone(args.out_dir):
                replaced = other_data_set(args.out_dir, built=False)
                schema = write(windows, rows, understood, args.out_dir, room)
                remove_leftovers_of_build(args.out_dir)
    except (DataError, FolderBusy, OSError) as error:
        return ended(error, args.out_dir, "error")
    except MemoryError:
        return ended(DataError("the windows do not fit into memory: ingest fewer at a time"), args.out_dir, "error")
    if replaced is not None:
        complain(f"note: {replaced}")
    if args.json:
        found = _summary(windows, args.out_dir) | {"schema_hash": None if schema is None else schema.hash()}
        found["understood"] = msgspec.to_builtins(understood)
        print(json.dumps(found, allow_nan=False))
    elif schema is None:
        print("nothing was written: --dry-run")
    else:
        print(f"{'written':11} {windows.X.shape[0]:,} windows, {args.out_dir}, schema {schema.hash()[:12]}")
    return 0


def _prepared(args: argparse.Namespace, room: WorkingMemory) -> Ingested:
    """Read the input that the arguments name, apply all checks, and return the windows with notes. Raises DataError."""
    most = 0.0 if args.drop_nan else args.max_missing
    windows = set_apart(without_missing(_read(args, room), most=most, drop=args.drop_nan, room=room), room)
    wanted = _wanted(args)
    stand_ins = tuple(dict.fromkeys(one.written for one in wanted.missing))
    known = {channel.name for channel in windows.channels if channel.transform != "none"}
    asked = _in_question(windows, {*wanted.level, *known})
    for number, detector in enumerate(OF_MEASURED):
        windows = _noted(windows, detector(asked))
        room.progress("judging", (number + 1) / (len(OF_MEASURED) + 2))
    windows = without_copies(windows, allow=args.allow_copies)
    room.progress("judging", 1.0)
    if args.like is not None:
        windows = made_like(windows, _schema(args.like))
    return _noted(replace(windows, stand_ins=stand_ins), doubts(_in_question(windows), OF_ALL))


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(
        "training.data.ingest",
        description="Bring windows that you already have into a data set that trainers read.",
    )
    add = parser.add_argument

    def names(flag: str, metavar: str, meaning: str) -> None:
        add(flag, type=_names, default=(), metavar=metavar, help=meaning)

    add("file", nargs="*", type=Path, metavar="FILE",
        help="files or folders: text, Parquet, JSON, .npy or .arff, packed too; or windows: .npz")  # fmt: skip
    for recorder in RECORDERS:
        more: dict[str, Any] = {"action": "append", "default": []} if recorder.several else {}
        add(recorder.flag, metavar=recorder.metavar, help=recorder.help, **more)
    add("--since", type=_moment, metavar="TIME",
        help="with a server: first time in UTC (default: a day before the last)")  # fmt: skip
    add("--until", type=_moment, metavar="TIME", help="with a server: the last time (default: now)")
    add("--query", type=_query, action="append", default=[], metavar="NAME=PROMQL",
        help="with a server: query for another channel, one series for each instance")  # fmt: skip
    add("--match", default="", metavar="LABELS", help="with a server: labels that select hosts, as in 'job=\"node\"'")
    out_dir = Path("data/processed")
    add("--out-dir", type=Path, default=out_dir, help=f"folder of the data set (default {out_dir})")
    for role in Role:
        also = ("--group",) if role is Role.HOST else ()
        add(role.flag, *also, dest=role.name, metavar="NAME", help=f"column of {role.cells} (default: by its name)")
    add("--rows-are-windows", action="store_true",
        help="each row is a separate example, as of a flow: a window of its values, without a time")  # fmt: skip
    names("--columns", "NAME,NAME", "names of all columns of a text table whose first line does not name them")
    add("--decimal", choices=tuple(DECIMALS), help="sign before the decimals of a text table (default: by its cells)")
    add("--host-from", type=HostFrom, choices=tuple(HostFrom), metavar="{file,folder}",
        help="what names the host of a file's rows: the file, or its folder")  # fmt: skip
    add("--hz", type=_positive, help="samples a second (default: by the times of samples, else unknown)")
    add("--window-s", type=_positive, help="length of the windows to cut from samples, in seconds")
    add("--stride-s", type=_positive, help="seconds from window to window (default: as --like, or half a window)")
    add("--episode-s", type=_positive, help="seconds of the episodes to cut recordings into (default: by a rule)")
    add("--points", action="store_true",
        help="labels mark single samples: each window that holds one gets its label")  # fmt: skip
    names("--labels", "NAME,NAME", "names of the classes, in the order of their numbers")
    names("--benign", "NAME,NAME", "classes without alarm (default: the one called benign, normal or the like)")
    add("--no-benign", action="store_true",
        help="call no class benign: models tell classes apart, and none raises an alarm")  # fmt: skip
    names("--oracle", "CHANNEL,CHANNEL", "channels that the realistic mode must not see")
    names("--ignore", "NAME,NAME", "columns or channels to leave out")
    names("--counter", "CHANNEL,CHANNEL", "channels that are running totals: take their growth a second")
    names("--level", "CHANNEL,CHANNEL", "channels to keep that look like an id, total or label, or repeat a value")
    add("--missing", type=_missing, action="extend", default=[], metavar="[CHANNEL=]VALUE",
        help="numbers that mean a missing value, as in --missing=-999,cpu=255")  # fmt: skip
    names("--unlabelled", "LABEL,LABEL", "labels that mean no label: leave their windows out (nan: empty labels)")
    add("--labels-from", type=Path, metavar="FILE",
        help="log of incidents that labels the samples: start, end, label, host")  # fmt: skip
    add("--rest", metavar="NAME", help="class of the samples in no incident (default: left out)")
    add("--all-labelled", action="store_true", help="take labels like -1, 255 or unknown as classes")
    add("--t-unit", choices=CHOICES, help="unit of times in numbers (default: by the column's name or their size)")
    add("--time-format", metavar="FORMAT",
        help="format of times that are text, as strptime has it: %%d/%%m/%%Y %%H:%%M:%%S")  # fmt: skip
    add("--day", type=_day, metavar="DATE", help="date of the first row, where the times have no date or no year")
    add("--every-s", type=_positive, help="with --pcp or a server: seconds between samples (default 60)")
    add("--max-missing", type=fraction("max_missing", 0.2, "").parse, default=0.2, metavar="SHARE",
        help="share of missing values up to which a window is kept (default 0.2)")  # fmt: skip
    add("--max-gib", type=_positive, metavar="GIB",
        help="what a packed file may become (default: 200 times its size)")  # fmt: skip
    add("--drop-nan", action="store_true",
        help="leave out windows with an infinite value, or a missing one of a channel that their host has")  # fmt: skip
    add("--allow-copies", action="store_true",
        help="keep copies of windows; a host's recordings that share some count as one")  # fmt: skip
    add("--like", type=Path, metavar="FOLDER",
        help="data set whose channels, window length and classes this one gets; labels may be missing")  # fmt: skip
    add("--dry-run", action="store_true", help="show what is understood, and write nothing")
    add("--json", action="store_true", help="print the summary as JSON")
    return parser


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a positive number, not {text}")
    return value


def _moment(text: str) -> float:
    """Return a time, written as a number or in ISO format, as seconds since 1970; a time without a zone is in UTC."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a time such as 2026-11-20T07:29:03Z, not {text!r}") from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _day(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a date such as 2026-11-20, not {text!r}") from None


def _query(text: str) -> tuple[str, str]:
    name, given, query = text.partition("=")
    if not (name.strip() and given and query.strip()):
        raise argparse.ArgumentTypeError(
            f"must be NAME=PROMQL, as in temperature=node_hwmon_temp_celsius, not {text!r}"
        )
    if name.strip() in {str(role) for role in Role}:
        raise argparse.ArgumentTypeError(f"{name.strip()} is no name for a channel, as it means something else")
    return name.strip(), query.strip()


def _names(text: str) -> tuple[str, ...]:
    try:
        (row,) = csv.reader([text], skipinitialspace=True, strict=True)
    except (ValueError, csv.Error):
        row = [""]
    names = tuple(name.strip() for name in row or [""])
    if ("" in names and text) or len(set(names)) != len(names):
        raise argparse.ArgumentTypeError(
            f"must be different names with commas between them, one that holds a comma in double quotes: {text!r}"
        )
    return names


def _missing(text: str) -> list[Missing]:
    found = []
    for one in _names(text):
        try:
            found.append(read_missing(one))
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"must be numbers with commas between them, each with CHANNEL= before it if it is one channel's: "
                f"{text!r}"
            ) from None
    return found


def _read(args: argparse.Namespace, room: WorkingMemory) -> Ingested:
    """Read the windows of the input with the reader for its format; exit with an error for an option that this format
    does not use."""
    recorder = _recorder(args)
    if args.rest is not None and args.labels_from is None:
        _usage("--rest has no effect without --labels-from: leave it out")
    log = None if args.labels_from is None else Log(path=args.labels_from, rest=args.rest)
    if recorder is not None:
        return _read_recorder(args, recorder, log)
    _without_effect(args, "a file", *OF_SERVERS)
    _say(args, f"reading {', '.join(map(str, args.file))} …")
    said = _said(args)
    if args.file[0].suffix.lower() == ".npz":
        _without_effect(args, "a .npz file", *OF_TABLES)
        if len(args.file) > 1:
            _usage("give one .npz file: numpy.concatenate joins arrays")
        scoring = args.like is not None
        check_archive(args.file[0], room.unpacked_max)
        return read_npz(args.file[0], hz=args.hz, t_unit=args.t_unit, said=said, wanted=_wanted(args), scoring=scoring)
    if args.rows_are_windows:
        _without_effect(args, "rows that are windows", *OF_CUT, *OF_SAMPLES)
    roles = {role: getattr(args, role.name) for role in Role if getattr(args, role.name) is not None}
    return read_long(
        args.file,
        _cut(args),
        said=said,
        wanted=_wanted(args),
        roles=roles,
        log=log,
        columns=args.columns,
        decimal=None if args.decimal is None else DECIMALS[args.decimal],
        host_from=args.host_from,
        scoring=args.like is not None,
        room=room,
    )


def _recorder(args: argparse.Namespace) -> Recorder | None:
    """Return the recorder that the flags name; None if the arguments name a file. Exits with an error unless there is
    exactly one input."""
    named = [recorder for recorder in RECORDERS if getattr(args, recorder.name)]
    if len(named) + bool(args.file) != 1:
        _usage(f"give files, or one of {', '.join(recorder.flag for recorder in RECORDERS)}")
    return named[0] if named else None


def _read_recorder(args: argparse.Namespace, recorder: Recorder, log: Log | None) -> Ingested:
    """Read another recorder's samples, from its files or its server, and cut them into windows. Raises DataError."""
    given = getattr(args, recorder.name)
    sources = given if recorder.several else [given]
    what = recorder.flag if recorder.several else f"{recorder.flag} {given}"
    heeded = recorder.options(sources[0])
    _without_effect(args, what, *(option for option in OF_SERVERS if option not in heeded))
    roles = (role.name for role in Role)
    _without_effect(
        args,
        recorder.flag,
        *roles,
        *OF_SAMPLES,
        *("columns", "decimal", "host_from", "rows_are_windows"),
    )
    if log is None:
        _without_effect(args, f"{recorder.flag} without --labels-from", *OF_LABELS)
    until = args.until or SystemClock().now()
    since = until - DAY_S if args.since is None else args.since
    if since >= until:
        _usage("--since must lie before --until")
    asked = RangeQuery(
        since=since, until=until, every_s=args.every_s or 60.0, match=args.match, queries=dict(args.query)
    )
    found = recorder.read(sources, asked, partial(_say, args))
    return read_recorded(found, _cut(args), said=_said(args), wanted=_wanted(args), log=log)


def _schema(path: Path) -> FeatureSchema:
    if path.is_dir():
        finish(path)
    return read_schema(path / SCHEMA_FILE if path.is_dir() else path)


def _said(args: argparse.Namespace) -> SaidClasses:
    only_incidents = args.labels_from is not None and args.rest is None
    hint = "; --rest normal makes a benign class of all that lies in no incident" if only_incidents else ""
    return SaidClasses(**_given(SaidClasses, args), hint=hint)


def _given(kind: type[SaidClasses | WindowCut | Wanted], args: argparse.Namespace) -> dict[str, Any]:
    """Return the values of those options that are fields of the class ``kind``, by name."""
    return {name: getattr(args, name) for name in kind._fields if name in args}


def _cut(args: argparse.Namespace) -> WindowCut:
    """Return the options for cutting windows; length and step default to those of --like, if it is given. Raises
    DataError."""
    cut = WindowCut(**_given(WindowCut, args))
    if args.like is None:
        return cut
    schema = _schema(args.like)
    return cut._replace(
        window_samples=schema.window_samples,
        usual_stride_s=schema.stride_s,
        rows_are_windows=cut.rows_are_windows or schema.has_examples,
    )


def _wanted(args: argparse.Namespace) -> Wanted:
    """Return the options on columns; to --missing, the numbers are added that counted as missing in the data set of
    --like. Raises DataError."""
    missing = list(args.missing)
    if args.like is not None:
        validation = (args.like if args.like.is_dir() else args.like.parent) / VALIDATION_FILE
        known = read_understood(validation) if validation.exists() else None
        said = known.stand_ins if known is not None and known.stand_ins else ()
        missing += (read_missing(one, is_like=True) for one in said)
    return Wanted(**_given(Wanted, args))._replace(missing=tuple(missing))


def _in_question(windows: Ingested, exempt: Collection[str] = ()) -> WindowsInQuestion:
    """Return the windows in the form that detectors of doubtful data take; ``exempt`` has the channels not to judge."""
    return WindowsInQuestion(
        X=windows.X,
        channels=[channel.name for channel in windows.channels],
        rows=windows.rows,
        benign=windows.benign.names,
        sample_hz=windows.sample_hz,
        timed=windows.timing is Timing.SECONDS,
        one_clock=bool(windows.clock),
        exempt=exempt,
    )


def _noted(windows: Ingested, notes: Iterable[str]) -> Ingested:
    return replace(windows, notes=(*windows.notes, *notes))


def _without_effect(args: argparse.Namespace, what: str, *options: str) -> None:
    given = [option for option in options if getattr(args, option)]
    if given:
        flag = Role[given[0]].flag if given[0] in Role.__members__ else f"--{given[0].replace('_', '-')}"
        _usage(f"{flag} has no effect on {what}: leave it out")


def _usage(sentence: str) -> NoReturn:
    complain(f"error: {sentence}")
    raise SystemExit(Exit.BAD_ARGUMENTS)


def _say(args: argparse.Namespace, text: str) -> None:
    if not args.json:
        print(text, file=sys.stderr, flush=True)


def _summary(windows: Ingested, out_dir: Path) -> dict[str, object]:
    hidden = sum("realistic" not in channel.modes for channel in windows.channels)
    return {
        "benign": {"classes": list(windows.benign.names), "why": windows.benign.why},
        "out_dir": str(out_dir),
        "windows": int(windows.X.shape[0]),
        "episodes": int(windows.episode.present.size),
        "hosts": windows.host.present.tolist(),
        "channels": {"realistic": len(windows.channels) - hidden, "oracle": len(windows.channels)},
        "samples": int(windows.X.shape[2]),
        "window_s": windows.window_s,
        "labels": counts_of(windows.label, windows.label.present.tolist()),
        "notes": list(windows.notes),
    }
