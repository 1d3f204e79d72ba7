#!/bin/sh
# A machine of its own: the real root below, everything written above it and gone afterwards, a network of its own.
# own_root.sh FOLDER CHECKOUT PYTHON_PREFIX VENV COMMAND…   (as root, under: unshare --mount --net --pid --fork)
set -eu
folder=$1 checkout=$2 prefix=$3 venv=$4
shift 4
mount -t tmpfs tmpfs "$folder"
root=$folder/root
mkdir "$folder/upper" "$folder/work" "$root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/upper,workdir=$folder/work" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
mkdir "$root/written"
mount --bind "$folder/upper" "$root/written"
ip link set lo up
# What somebody may have tried on the real machine is not this one's.
rm -rf "$root/var/lib/cis490" "$root/var/lib/cis490-worker" "$root/etc/cis490"

# /opt/cis490 as a newcomer has it: the checkout, and a virtual environment over a Python that everybody may run.
opt=$root/opt/cis490
mkdir -p "$opt/.venv/bin" "$opt/.venv/lib" "$root/opt/python" "$root/run/systemd/system"
(cd "$checkout" && cp -rp training etc scripts docs pyproject.toml constraints.txt "$opt")
mount --bind "$prefix" "$root/opt/python"
mount --bind "$venv/lib" "$opt/.venv/lib"
printf 'home = /opt/python/bin\ninclude-system-site-packages = false\n' > "$opt/.venv/pyvenv.cfg"
version=$("$venv/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
ln -s "/opt/python/bin/python$version" "$opt/.venv/bin/python"
sed "1s|.*|#!/opt/cis490/.venv/bin/python|" "$checkout/tests/children/systemctl.py" > "$root/usr/local/bin/systemctl"
chmod -R a+rX "$opt" && chmod 755 "$root/usr/local/bin/systemctl"
chmod 711 "$root/root"  # a Python built in there may find its library there
cp "$checkout/tests/children/newcomer.py" "$root/opt/newcomer.py"
export PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
exec chroot "$root" "$@"
