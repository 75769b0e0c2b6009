#!/bin/sh
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev
for file in /modules/*.ko*; do insmod $file; done 2>/dev/null
mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=262144,cache=loose host /mnt
for folder in sys proc dev; do mount --bind /$folder /mnt/$folder; done
mount -t tmpfs run /mnt/run
mount -t tmpfs shm /mnt/dev/shm 2>/dev/null
ip link set lo up
for number in 0 1; do ip link set eth$number up; ip addr add 10.77.$number.1/24 dev eth$number; done
chroot /mnt /bin/sh -c 'eval "$(sed -n "s/.*vmcommand=\([^ ]*\).*/\1/p" /proc/cmdline | base64 -d)"'
poweroff -f
