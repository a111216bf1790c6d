#!/bin/sh
# Run a command on a disk of its own, in a new mount namespace: isolate.sh IMAGE... -- COMMAND...
# The images (checkout, interpreter) are read-only at their places; /tmp is empty, and nothing else can be written.
set -eu

mount --make-rprivate /
mount -t tmpfs tmpfs /mnt
number=0
images=
while [ "$1" != -- ]; do
    number=$((number + 1))
    mkdir "/mnt/$number"
    mount --bind "$1" "/mnt/$number"
    images="$images $number:$1"
    shift
done
shift
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /var/tmp
for image in $images; do
    place=${image#*:}
    mkdir -p "$place" 2> /dev/null || true
    mount --bind "/mnt/${image%%:*}" "$place"
    mount -o remount,bind,ro "$place"
done
umount --recursive /mnt
mount -o remount,bind,ro /
mount -t proc proc /proc
cd /tmp
exec "$@"
