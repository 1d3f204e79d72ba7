"""The output of programs in its documented form: each value of the table is the one that stands there."""

import csv
import io
from pathlib import Path

import pytest

from training.data.errors import DataError
from training.data.ingest.printed import form_of

REAL = Path(__file__).parent / "real" / "programs"

VMSTAT = """\
procs -----------memory---------- ---swap-- -----io---- -system-- ------cpu----- -----timestamp-----
 r  b   swpd   free   buff  cache   si   so    bi    bo   in   cs us sy id wa st                 UTC
13  0      0 105794  39676 102529    0    0  1034  3375  571 1791 77  9 14  0  0 2026-11-28 13:53:07
procs -----------memory---------- ---swap-- -----io---- -system-- ------cpu----- -----timestamp-----
 r  b   swpd   free   buff  cache   si   so    bi    bo   in   cs us sy id wa st                 UTC
 2  0      0 105790  39676 102529    0    0   180  3456 1471 3085 98  2  0  0  0 2026-11-28 13:53:08
"""
SAR = """\
Linux 6.1.0-18-amd64 (box1) \t11/28/26 \t_x86_64_\t(2 CPU)

23:59:59        CPU     %user     %idle
23:59:59        all     56.00     44.00
23:59:59          0     50.00     50.00

23:59:59    kbmemfree   kbavail
23:59:59     10443536  20624412

00:00:00        CPU     %user     %idle
00:00:00        all     54.23     45.77
00:00:00          0     40.00     60.00

00:00:00    kbmemfree   kbavail
00:00:00     10443000  20624000

Average:        CPU     %user     %idle
Average:        all     55.11     44.89
"""
SAR_OF_FILE = """\
Linux 6.1.0-18-amd64 (box1) \t11/28/2026 \t_x86_64_\t(2 CPU)

11:50:00 PM     CPU     %user     %idle
11:59:00 PM     all     56.00     44.00
12:09:00 AM     all     54.23     45.77
Average:        all     55.11     44.89

11:50:00 PM  LINUX RESTART (2 CPU)

11:50:00 PM   retrans/s
11:59:00 PM        1.00
12:09:00 AM        2.00

11:50:00 PM atmptf/s retrans/s
11:59:00 PM     0.00      3.00
12:09:00 AM     0.00      4.00

11:50:00 PM  MBfsfree  FILESYSTEM
11:59:00 PM      9000  /dev/my disk
12:09:00 AM      8000  /dev/my disk
"""
IOSTAT = """\
Linux 6.1.0-18-amd64 (box1) \t2026-11-28 \t_x86_64_\t(2 CPU)

2026-11-28 13:53:06
avg-cpu:  %user   %idle
          43.57   56.43

Device            r/s     %util
vda             49.70      4.14
sdb              1.00      0.10


2026-11-28 13:53:07
avg-cpu:  %user   %idle
          64.32   35.68

Device            r/s     %util
vda             57.00      5.20


2026-11-28 13:53:08
avg-cpu:  %user   %idle
          60.00   40.00

Device            r/s     %util
vda             50.00      5.00
sdb              1.00      0.10
"""
PIDSTAT = """\
Linux 6.1.0-18-amd64 (box1) \t11/28/26 \t_x86_64_\t(2 CPU)

13:53:08      UID       PID    %usr    %CPU   CPU  Command
13:53:09        0      3752   22.50   22.50     1  python
13:53:09        0      3756   11.25   11.25     0  python
13:53:09        0        15    1.00    1.00     0  Web Content
13:53:09        0        16    1.00    1.00     0  kworker/0:1-events
13:53:09        0        17    1.00    1.00     0  /usr/bin/node /srv/a.js --x=1

13:53:09      UID       PID     RSS   %MEM  Command
13:53:10        0      3752    1000   2.50  python

Average:      UID       PID    %usr    %CPU   CPU  Command
Average:        0      3752   22.50   22.50     -  python
"""
DSTAT = """\
"Dstat 0.7.2 CSV output"
"Author:","Dag",,,,"URL:","http://x"
"Host:","box1",,,,"User:","me"
"Cmdline:","dstat -c --output x",,,,"Date:","02 Mar 2026 09:00:00 UTC"

"system","total cpu usage",,"dsk/total",
"time","usr","sys","read","writ"
02-03 09:00:00,8.833,2.1,2877.6,9363.4
31-12 23:59:59,9,2,2877,9363
01-01 00:00:00,8,2,2877,9363
"""
DOOL = DSTAT.replace("Dstat 0.7.2", "dool 1.3.1").replace("31-12", "Dec-31").replace("01-01", "Jan-01")
DSTAT_ROWS = ["2026-12-31 23:59:59,9,2,2877,9363", "2027-01-01 00:00:00,8,2,2877,9363"]
COLLECTL = """\
################################################################################
# Collectl:   V4.3.1-1  HiRes: 1  Options: -P
################################################################################
#Date Time [CPU]User% [CPU]Sys%
20260302 09:00:01 12 3
"""
PERFMON = """\
"(PDH-CSV 4.0) (CET)(-60)","\\\\DESK\\Processor(_Total)\\% Processor Time","\\\\DESK\\Memory\\Available MBytes"
"03/28/2026 09:00:00.250"," ","6018"
"03/28/2026 09:00:01.250","26.8","6050"
Exiting, please wait...
The command completed successfully.
"""
HWINFO = """\
Date,Time,"CPU [%]","CPU [%]","Throttling [Yes/No]","Fan [RPM]",
2.3.2026,9:00:00.123,4.1,5.2,No,900,
Date,Time,"CPU [%]","CPU [%]","Throttling [Yes/No]","Fan [RPM]",
,,"CPU [#0]","CPU [#1]","CPU [#0]","Board",
2.3.2026,9:00:02.123,4.3,5.0,Yes,905,
Date,Time,"CPU [%]","CPU [%]","Throttling [Yes/No]","Fan [RPM]",
,,"CPU [#0]","CPU [#1]","CPU [#0]","Board",
"""
MONITOR = ",/intelcpu/0/load/1,/intelcpu/0/temperature/1\nTime,CPU Core #1,CPU Core #1\n03/02/2026 09:00:00,4,41\n"
INFLUX = """\
#group,false,false,true,true,false,false,true,true,true,true
#datatype,string,long,dateTime:RFC3339,dateTime:RFC3339,dateTime:RFC3339,double,string,string,string,string
#default,_result,,,,,,,,,
,result,table,_start,_stop,_time,_value,_field,_measurement,cpu,host
,,0,2026-03-02T00:00:00Z,2026-03-03T00:00:00Z,2026-03-02T09:00:00Z,12.5,usage,cpu,total,pi

,result,table,_start,_stop,_time,_value,_field,_measurement,host
,,1,2026-03-02T00:00:00Z,2026-03-03T00:00:00Z,2026-03-02T09:00:00Z,99,free,mem,pi
"""
TABLES = {
    "vmstat": (VMSTAT, "timestamp,r,b,swpd,free,buff,cache,si,so,bi,bo,in,cs,us,sy,idle,wa,st", [
        "2026-11-28 13:53:08,2,0,0,105790,39676,102529,0,0,180,3456,1471,3085,98,2,0,0,0",
    ]),
    "sar": (SAR, "timestamp,all %user,all %idle,0 %user,0 %idle,kbmemfree,kbavail", [
        "2026-11-28 23:59:59,56.00,44.00,50.00,50.00,10443536,20624412",
        "2026-11-29 00:00:00,54.23,45.77,40.00,60.00,10443000,20624000",
    ]),
    "iostat": (IOSTAT, "timestamp,%user,%idle,vda r/s,vda %util,sdb r/s,sdb %util", [
        "2026-11-28 13:53:07,64.32,35.68,57.00,5.20,,",
        "2026-11-28 13:53:08,60.00,40.00,50.00,5.00,1.00,0.10",
    ]),
    "iostat without times": (
        2 * "".join(line for line in IOSTAT.splitlines(keepends=True) if not line.startswith("2026")),
        "%user,%idle,vda r/s,vda %util,sdb r/s,sdb %util",
        2 * ["64.32,35.68,57.00,5.20,,", "60.00,40.00,50.00,5.00,1.00,0.10"],
    ),
    "sar of a file, past midnight": (
        SAR_OF_FILE, "timestamp,all %user,all %idle,retrans/s,atmptf/s,retrans/s (2),/dev/my disk MBfsfree", [
            "2026-11-28 23:59:00,56.00,44.00,1.00,0.00,3.00,9000",
            "2026-11-29 00:09:00,54.23,45.77,2.00,0.00,4.00,8000",
        ],
    ),
    "pidstat": (
        PIDSTAT,
        ("timestamp,python %usr,python %CPU,Web Content %usr,Web Content %CPU,kworker %usr,kworker %CPU,"
         "/usr/bin/node %usr,/usr/bin/node %CPU,python RSS,python %MEM"),
        [
            "2026-11-28 13:53:09,33.75,33.75,1.00,1.00,1.00,1.00,1.00,1.00,,",
            "2026-11-28 13:53:10,0,0,0,0,0,0,0,0,1000,2.50",
        ],
    ),
    "dstat, twice into one file": (
        2 * DSTAT,
        "timestamp,total cpu usage usr,total cpu usage sys,dsk/total read,dsk/total writ",
        2 * DSTAT_ROWS,
    ),
    "dool": (DOOL, "timestamp,total cpu usage usr,total cpu usage sys,dsk/total read,dsk/total writ", DSTAT_ROWS),
    "collectl": (COLLECTL, "timestamp,[CPU]User%,[CPU]Sys%", ["2026-03-02 09:00:01,12,3"]),
    "perfmon": (PERFMON, "timestamp,Processor(_Total)\\% Processor Time,Memory\\Available MBytes", [
        "2026-03-28 09:00:00.250+01:00,,6018",
        "2026-03-28 09:00:01.250+01:00,26.8,6050",
    ]),
    "HWiNFO": (HWINFO, "Date,Time,CPU [%],CPU [%] (2),Throttling [Yes/No],Fan [RPM],", [
        "2.3.2026,9:00:00.123,4.1,5.2,0,900,",
        "2.3.2026,9:00:02.123,4.3,5.0,1,905,",
    ]),
    "Hardware Monitor": (MONITOR, "Time,CPU Core #1 load/1,CPU Core #1 temperature/1", ["03/02/2026 09:00:00,4,41"]),
    "Zabbix": ('"itemid";"clock";"value";"ns"\n7;1772442000;0.4;12\n8;1772442001;"2";3\n', "itemid,clock,value", [
        "7,1772442000,0.4",
        "8,1772442001,2",
    ]),
    "InfluxDB": (INFLUX, "time,metric,host,value", [
        "2026-03-02T09:00:00Z,cpu usage cpu=total,pi,12.5",
        "2026-03-02T09:00:00Z,mem free,pi,99",
    ]),
}  # fmt: skip


@pytest.mark.parametrize("program", TABLES)
def test_what_a_program_prints_is_a_table(program):
    text, names, rows = TABLES[program]
    lines = text.splitlines(keepends=True)
    found = list(form_of(lines).rows(lines))
    assert [list(row) for row in found] == list(csv.reader(io.StringIO("\n".join([names, *rows]))))


# Output that programs printed here: the number of rows, and some columns as printed (processes added up by hand).
PRINTED = {
    "vmstat-t.log": (5, {"timestamp": "2026-11-28 15:15:21 2026-11-28 15:15:25", "bi": "7628 256", "idle": "0 0"}),
    "vmstat.log": (5, {"r": "17 21", "cs": "3620 10751", "st": "0 0"}),
    "vmstat-wide.log": (5, {"timestamp": "2026-11-28 15:15:21 2026-11-28 15:15:25", "buff": "512 512", "gu": "0 0"}),
    "sar-live.txt": (3, {"timestamp": "2026-11-28 15:15:21 2026-11-28 15:15:23", "1 %usr": "61.00 53.92"}),
    "sar-of-file.txt": (29, {"timestamp": "2026-11-23 11:49:16 2026-11-23 11:50:12", "all %idle": "71.28 99.00",
                             "plist-sz": "106 112"}),
    "iostat-xt.txt": (3, {"timestamp": "2026-11-28 15:15:21 2026-11-28 15:15:23", "%nice": "36.14 32.35",
                          "vda r/s": "740.59 702.94"}),
    "iostat-x.txt": (3, {"%user": "43.56 46.60", "vda rkB/s": "7516.83 5071.84"}),
    "iostat-iso.txt": (3, {"timestamp": "2026-11-28T15:15:21+0000 2026-11-28T15:15:23+0000",
                           "vda tps": "968.32 1204.85"}),
    "pidstat.txt": (2, {"python %usr": "61.27 92", "perl %system": "1.8 2", "pidstat %wait": "9.01 9.00"}),
    "pidstat-h.txt": (2, {"timestamp": "2026-11-28 15:15:21 2026-11-28 15:15:22", "python RSS": "3022732 3197444"}),
    "dstat.csv": (3, {"timestamp": "2026-11-28 15:15:36 2026-11-28 15:15:39", "system int": "2063 2366"}),
    "dool.csv": (2, {"timestamp": "2026-11-28 15:16:01 2026-11-28 15:16:02", "swap used": "0 0"}),
    "dool-epoch.csv": (2, {"timestamp": "1795878961.164 1795878962.159", "procs run": "22 7"}),
    "collectl.txt": (3, {"timestamp": "2026-11-28 15:15:26 2026-11-28 15:15:28", "[CPU]User%": "30 50"}),
    "collectl-comma.txt": (3, {"timestamp": "2026-11-28 15:15:25 2026-11-28 15:15:27", "[CPU]User%": "27 40"}),
}  # fmt: skip


@pytest.mark.parametrize("name", PRINTED)
def test_what_programs_printed_is_read_as_it_stands(name):
    count, columns = PRINTED[name]
    lines = (REAL / name).read_text().splitlines(keepends=True)
    names, *rows = map(list, form_of(lines).rows(lines))
    assert len(rows) == count
    assert len({*names}) == len(names)
    assert all(len(row) == len(names) for row in rows)
    for column, values in columns.items():
        place = names.index(column)
        assert " ".join([rows[0][place], rows[-1][place]]) == values


@pytest.mark.parametrize(
    ("date", "clock", "iso"),
    [
        ("11/28/26", "23:00:00", "2026-11-28"),
        ("28/11/26", "23:00:00", "2026-11-28"),
        ("03/04/2026", "11:00:00 PM", "2026-03-04"),
        ("03/12/2026", "23:00:00", "03/12/2026"),
        ("12/04/2026", "23:00:00", "12/04/2026"),
        ("03.04.2026", "23:00:00", "2026-04-03"),
    ],
)
def test_the_date_of_a_recording_is_read_where_it_is_sure(date, clock, iso):
    half = clock[8:]
    text = f"Linux 6.1 (box1) \t{date} \tx\n\n10:00:00{half} CPU %user\n{clock} all 5.0\n"
    lines = text.splitlines(keepends=True)
    assert list(form_of(lines).rows(lines))[1] == [f"{iso} 23:00:00", "5.0"]
    lines.append(f"{'12:00:00 AM' if half else '00:00:00'} all 6.0\n")
    if iso == date:
        with pytest.raises(DataError, match="passes midnight"):
            list(form_of(lines).rows(lines))
    else:
        assert list(form_of(lines).rows(lines))[2][0] == f"{iso[:-2]}{int(iso[-2:]) + 1:02} 00:00:00"


@pytest.mark.parametrize(
    "text",
    [
        DSTAT + DSTAT.replace('"usr"', '"wai"'),
        HWINFO.replace('Fan [RPM]",\n2', 'Fan [RPM]"\n2', 1),
    ],
)
def test_logs_of_unlike_columns_in_one_file_are_refused(text):
    lines = text.splitlines(keepends=True)
    with pytest.raises(DataError, match="other columns"):
        list(form_of(lines).rows(lines))


def test_other_text_has_no_form():
    assert form_of(["t,label,x\n", "1,a,2\n"]) is None
    assert form_of([]) is None
