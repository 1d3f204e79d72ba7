"""Recognise files that are no tables of samples by how they begin, and say what makes a table of them."""

import re
import shlex

from training.data.errors import DataError

HEAD_BYTES = 4096  # that show it
COUNTED = 'END {print "t,events"; for (s in n) print s","n[s]}\' {path} > events.csv'
WEIGHED = 'END {print "t,packets,bytes"; for (s in n) print s","n[s]","b[s]}\''
PACKETS = (
    "packets and no samples: count them a second, with tshark -r {path} -T fields -e frame.time_epoch -e frame.len | "
    "awk '{n[int($1)]++; b[int($1)]+=$2} " + WEIGHED + " > packets.csv"
)
UNPACK = "packed: unpack it first"
# Sentences on files that are no tables, by regular expressions for their first bytes.
BINARY = {
    rb"\x89HDF": "an HDF5 file: write its columns with pandas' to_csv",
    rb"MATLAB ": "a MATLAB file: write its arrays into a .npz file, with scipy.io.loadmat and numpy.savez",
    rb"\xd0\xcf\x11\xe0": "an old spreadsheet: save it as CSV",
    rb"\xd4\xc3\xb2\xa1|\xa1\xb2\xc3\xd4|\x4d\x3c\xb2\xa1|\xa1\xb2\x3c\x4d|\n\r\r\n": PACKETS,
    rb"ElfFile\0": (
        "Windows' events and no samples: count them a second, with Get-WinEvent -Path {path} | Group-Object "
        "{$_.TimeCreated.ToString('s')} -NoElement | Select-Object Name,Count | Export-Csv events.csv"
    ),
    rb"\xef\xbe\xed\xfe": (
        "atop's own file: make a table, with atop -r {path} -P CPL | awk 'BEGIN {print \"t,load1,load5,load15\"} "
        '/^CPL/ {print $3","$8","$9","$10}\' > load.csv'
    ),
    rb"\x96\xd5|\xd5\x96": "a file of sadc: read it with --sysstat {path}",
    rb"SQLite": "an SQLite database: write a table of it, with sqlite3 -csv -header",
    rb"ARROW1": "a Feather file: write it as Parquet, with pandas' to_parquet",
    rb"\x80[\x02-\x05][\x95cX}\]]": "a pickle, which may run programs as it is read: write it with pandas' to_parquet",
    rb"\x1f\x8b|\x28\xb5\x2f\xfd|\xfd7zXZ|BZh\d|7z\xbc\xaf|Rar!|PK\x03\x04|.{257}ustar": UNPACK,
}
# The same for texts, by their first lines.
TEXT = {
    r"AAA,progname": (
        'a log of nmon: make a table of it, with awk -F, -v OFS=, \'/^ZZZZ/ {t=$4" "$3} /^CPU_ALL/ '
        "{$2=t?t:\"t\"; print}' {path} | cut -d, -f2- > cpu.csv, and read that with --time-format '%d-%b-%Y %H:%M:%S'"
    ),
    r"top - \d": "what top prints: record with vmstat -t 1 or pidstat 1",
    r"ATOP - ": "what atop prints: record with vmstat -t 1 or sar -o FILE 1",
    r"(waiting for.*\n)?#\s*<-": "what collectl prints for people: record with collectl -P",
    r"(#.*\n)+>>> [\d.]+ <<<": "a raw recording of collectl: play it, with collectl -p {path} -P > table.txt",
    r"#separator \S+\n": (
        "a log of Zeek, of connections or events and no samples: count them a second, with awk '!/^#/ {n[int($1)]++} "
        + COUNTED
    ),
    r"[A-Za-z_][\w.]*(,[\w.-]+=[^,\s]+)* [\w.-]+=\S+( \d{10,19})?\r?\n": (
        "line protocol of InfluxDB: write it there, and query it as CSV, with influx query --raw"
    ),
    r"date \w{3} .*\r?\nbase (hex|dec)": (
        "a log of a bus (ASC), of frames and no samples: decode the signals into a table, as with cantools decode"
    ),
    r"# (HELP|TYPE) \w": "one scrape of a Prometheus exporter: read its server with --prometheus URL",
    r"(node=\S+ )?type=\w+ msg=audit\(": (
        "an audit log, of events and no samples: count them a second, with awk -F'[(.]' '{n[$2]++} " + COUNTED
    ),
    r"(\[pid +)?(\d+\]? +)?(\d+\.\d+ |[\d:.]+ )?[a-z]\w+\(.*(\) += (-?\d|0x|\?)|<unfinished)": (
        "system calls and no samples: record them with strace -f -ttt -o {path}, and count them a second, with awk "
        r"'{match($0, /[0-9]+\.[0-9]+ /); n[int(substr($0, RSTART))]++} " + COUNTED
    ),
    r"(\d{1,3} ){20,}\d*\s*\Z": (
        "one line of numbers, such as a trace of system calls: count each number in a trace, write a row a trace, and "
        "read these with --rows-are-windows"
    ),
    r'"?No\."?[,;]"?Time"?[,;]"?Source"?': (
        "Wireshark's packets and no samples: count them a second, with awk -F'\",\"' 'NR>1 {n[int($2)]++; "
        "b[int($2)]+=$6} " + WEIGHED + " {path} > packets.csv"
    ),
    r"\d\d:\d\d:\d\d\.\d+ (IP6?|ARP)[ ,]": (
        "packets that tcpdump printed: print them with tcpdump -tt, and count them a second, with awk "
        "'{n[int($1)]++} " + COUNTED
    ),
    r'[\[{](?s:.*)"(EventID|EventRecordID|winlog)"|("?Level"?|"?Keywords"?)\W+Date and Time': (
        "Windows' events and no samples: count those of each id a second, with pandas.crosstab(times.dt.floor('s'), "
        "ids).to_csv('events.csv')"
    ),
    r"(?i)<!doctype html|<html": "a page of HTML: download the file itself",
    r"<\?xml": "an XML file: write a table of it as CSV",
    r"version https://git-lfs": "a pointer of Git LFS: fetch the file itself, with git lfs pull",
}


def check_foreign(head: bytes, where: str) -> None:
    """Raise DataError for a file that is known to be no table by its first ``HEAD_BYTES``; ``where`` names the file in
    the error."""
    encoding = "utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    text = head.decode(encoding, "replace").lstrip()
    found = [what for looks, what in BINARY.items() if re.match(looks, head, re.DOTALL)]
    found += [what for looks, what in TEXT.items() if re.match(looks, text)]
    if found:
        raise DataError(f"{where} is {found[0].replace('{path}', shlex.quote(where))}.")
