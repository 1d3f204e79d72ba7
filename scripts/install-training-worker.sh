#!/bin/sh
# Install the training worker on this Linux machine as a service, or remove it.
#
#   sudo scripts/install-training-worker.sh --receiver-url URL [--host-id NAME] [--code CODE --fingerprint SHA256]
#   … --dataset NAME                                       # fetch this data set at once
#   sudo scripts/install-training-worker.sh                # again, with what was said before: after an upgrade
#   scripts/install-training-worker.sh … --dry-run         # show every step, do none
#   sudo scripts/install-training-worker.sh uninstall      # leave nothing
#
# Needs the checkout (in /opt/cis490) and its virtual environment (.venv; $CIS490_VENV names another). What is looked
# at and what is done is decided in training/fleet/install/__main__.py; this file only finds the Python that can run it.
set -eu

refuse() {
    printf 'install-training-worker: %s\n' "$1" >&2
    exit 1
}

[ "$(uname -s)" = Linux ] ||
    refuse "this script is for Linux; on Windows run scripts\\install-training-worker-windows.ps1"

checkout=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
[ -f "$checkout/training/fleet/install/__main__.py" ] ||
    refuse "$checkout is not the whole checkout: clone it again and run the script in there"

python=${CIS490_VENV:-$checkout/.venv}/bin/python
[ -x "$python" ] ||
    refuse "there is no virtual environment yet; make it with: python3 -m venv $checkout/.venv && $python -m pip install -c $checkout/constraints.txt -e '$checkout[worker,trainer]'"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    refuse "$python does not run or is older than Python 3.11; make the virtual environment again with a newer Python"

if [ "${1-}" = uninstall ]; then
    shift
    set -- --uninstall "$@"
fi
# A person who may not write here should leave no traces either, hence -B.
cd "$checkout"
exec "$python" -B -m training.fleet.install worker "$@"
