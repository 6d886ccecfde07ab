#!/bin/bash
# The guest's first process: puts a writable layer over the host's files and goes on in it (guest-session.sh).
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
exchange=${0%/*}
new=/mnt/root
fail() { echo "guest: cannot $*" > /dev/console; exec busybox poweroff -f; }

mount -t proc proc /proc || fail "mount /proc"
mount -t tmpfs -o size=80% layer /mnt || fail "mount the writable layer"
mkdir /mnt/upper /mnt/work "$new"
mount -t overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work overlay "$new" || fail "mount the overlay"
mount -t proc proc "$new/proc" && mount -t sysfs sys "$new/sys" && mount -t devtmpfs dev "$new/dev" || fail "mount /proc, /sys and /dev"
mkdir -p "$new/dev/pts" "$new/dev/shm"
mount -t devpts devpts "$new/dev/pts" && mount -t tmpfs -o size=80% shm "$new/dev/shm" || fail "mount below /dev"
mount -t tmpfs run "$new/run" || fail "mount /run"
mkdir -p "$new/run/lock" "$new/run/soft-roce"
mount -t hostfs -o "$exchange" exchange "$new/run/soft-roce" || fail "reach the host's folder"
ln -sfn /proc/self/fd "$new/dev/fd"
for name in stdin:0 stdout:1 stderr:2; do ln -sf "fd/${name#*:}" "$new/dev/${name%:*}"; done
exec chroot "$new" /bin/bash /run/soft-roce/session
