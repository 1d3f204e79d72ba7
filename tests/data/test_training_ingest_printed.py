"""What programs print, in their documented form: each value of the table is the one that stands there."""

import csv
import io

import pytest

from training.data.ingest.printed import form_of

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
"""
PIDSTAT = """\
Linux 6.1.0-18-amd64 (box1) \t11/28/26 \t_x86_64_\t(2 CPU)

13:53:08      UID       PID    %usr    %CPU   CPU  Command
13:53:09        0      3752   22.50   22.50     1  python
13:53:09        0      3756   11.25   11.25     0  python
13:53:09        0        15    1.00    1.00     0  sshd

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
"""
DOOL = DSTAT.replace("Dstat 0.7.2", "dool 1.3.1").replace("02-03 09", "Mar-02 09")
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
        "2026-11-28 13:53:07,13,0,0,105794,39676,102529,0,0,1034,3375,571,1791,77,9,14,0,0",
        "2026-11-28 13:53:08,2,0,0,105790,39676,102529,0,0,180,3456,1471,3085,98,2,0,0,0",
    ]),
    "sar": (SAR, "timestamp,all %user,all %idle,0 %user,0 %idle,kbmemfree,kbavail", [
        "2026-11-28 23:59:59,56.00,44.00,50.00,50.00,10443536,20624412",
        "2026-11-29 00:00:00,54.23,45.77,40.00,60.00,10443000,20624000",
    ]),
    "iostat": (IOSTAT, "timestamp,%user,%idle,vda r/s,vda %util,sdb r/s,sdb %util", [
        "2026-11-28 13:53:06,43.57,56.43,49.70,4.14,1.00,0.10",
        "2026-11-28 13:53:07,64.32,35.68,57.00,5.20,,",
    ]),
    "pidstat": (PIDSTAT, "timestamp,python %usr,python %CPU,sshd %usr,sshd %CPU", [
        "2026-11-28 13:53:09,33.75,33.75,1.00,1.00",
    ]),
    "dstat": (DSTAT, "time,total cpu usage usr,total cpu usage sys,dsk/total read,dsk/total writ", [
        "2026-03-02 09:00:00,8.833,2.1,2877.6,9363.4",
    ]),
    "dool": (DOOL, "time,total cpu usage usr,total cpu usage sys,dsk/total read,dsk/total writ", [
        "2026-03-02 09:00:00,8.833,2.1,2877.6,9363.4",
    ]),
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


def test_other_text_has_no_form():
    assert form_of(["t,label,x\n", "1,a,2\n"]) is None
    assert form_of([]) is None
