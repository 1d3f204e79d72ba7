#Requires -Version 5.1
<#
.SYNOPSIS
Install the training worker on this Windows machine as a Scheduled Task, or remove it.

.DESCRIPTION
Run it in PowerShell as administrator, from the checkout (in C:\cis490) with its virtual environment made. It looks at
the machine first, and stops with every reason at once if it will not do. Doing it again is harmless. What is looked at
and what is done is decided in training\fleet\install\__main__.py; this file only finds the Python that can run it.

.PARAMETER ReceiverUrl
Where the receiver is, for example https://pi.lan:8445. May be left away when it was said before.

.PARAMETER HostId
The name of this machine in the fleet. Without it: its computer name.

.PARAMETER Code
The one-time code that "cis490-jobs enroll" printed on the receiver.

.PARAMETER Fingerprint
The fingerprint of the receiver's authority, from the same line.

.PARAMETER Flags
Further flags of the worker, in one string, for example "--on-silence pause".

.PARAMETER Dataset
A data set to be fetched at once, by its name. Without it the first job that names one fetches it.

.PARAMETER VirtualEnvironment
The virtual environment. Without it: .venv in the checkout.

.PARAMETER DryRun
Show every step and do none.

.PARAMETER Uninstall
Take the worker away again and leave nothing.

.PARAMETER Force
With -Uninstall: although finished work has not been delivered.

.EXAMPLE
.\scripts\install-training-worker-windows.ps1 -ReceiverUrl https://pi.lan:8445 -Code ABCD-EFGH -Fingerprint sha256:12ab...

.EXAMPLE
.\scripts\install-training-worker-windows.ps1 -Uninstall
#>
[CmdletBinding()]
param(
    [string]$ReceiverUrl,
    [string]$HostId,
    [string]$Code,
    [string]$Fingerprint,
    [string]$Flags,
    [string]$Dataset,
    [string]$VirtualEnvironment,
    [switch]$DryRun,
    [switch]$Uninstall,
    [switch]$Force
)

Set-StrictMode -Version Latest
$ErrorActionPreference = 'Stop'

function Stop-WithReason {
    param([string]$Reason)
    [Console]::Error.WriteLine("install-training-worker: $Reason")
    exit 1
}

$checkout = Split-Path -Parent $PSScriptRoot
if (-not (Test-Path -LiteralPath (Join-Path $checkout 'training\fleet\install\__main__.py'))) {
    Stop-WithReason "$checkout is not the whole checkout: clone it again and run the script in there"
}
if (-not $VirtualEnvironment) {
    $VirtualEnvironment = Join-Path $checkout '.venv'
}
$python = Join-Path $VirtualEnvironment 'Scripts\python.exe'
if (-not (Test-Path -LiteralPath $python)) {
    Stop-WithReason "there is no virtual environment yet; make it with: py -3 -m venv $VirtualEnvironment; & $python -m pip install -c $checkout\constraints.txt -e '$checkout[worker,trainer]'"
}
& $python -c 'import sys; sys.exit(sys.version_info < (3, 11))'
if ($LASTEXITCODE -ne 0) {
    Stop-WithReason "$python does not run or is older than Python 3.11; make the virtual environment again with a newer Python"
}

$arguments = @('-B', '-m', 'training.fleet.install', 'worker')
if ($ReceiverUrl) { $arguments += @('--receiver-url', $ReceiverUrl) }
if ($HostId) { $arguments += @('--host-id', $HostId) }
if ($Code) { $arguments += @('--code', $Code) }
if ($Fingerprint) { $arguments += @('--fingerprint', $Fingerprint) }
if ($Flags) { $arguments += "--flags=$Flags" }
if ($Dataset) { $arguments += @('--dataset', $Dataset) }
if ($DryRun) { $arguments += '--dry-run' }
if ($Uninstall) { $arguments += '--uninstall' }
if ($Force) { $arguments += '--force' }

Push-Location -LiteralPath $checkout
try {
    & $python @arguments
    $result = $LASTEXITCODE
}
finally {
    Pop-Location
}
exit $result
