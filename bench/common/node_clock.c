/* A node whose clocks are its own, to be preloaded: the wall clock is ahead by some seconds, and every clock drifts.

   NODE_CLOCK holds "AHEAD DRIFT BASE": seconds, a ratio, and the monotonic second in which it began to drift. A fork that
   became another node says so with set_node_clock(). Where a monotonic clock starts is its time namespace's matter.
   NODE_CLOCK_FILE names a file of one double, the seconds that the wall clock is ahead at this moment: whoever writes it
   sets the clock, as NTP or an administrator does. Times of files are on the node's clock, too. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static double ahead, drift, base;
static const volatile double *set_ahead;

static void follow(const char *path) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return;
    void *at = mmap(NULL, sizeof(double), PROT_READ, MAP_SHARED, file, 0);
    set_ahead = at == MAP_FAILED ? NULL : at;
    close(file);
}

void set_node_clock(double its_ahead, double its_drift, double its_base) {
    ahead = its_ahead;
    drift = its_drift;
    base = its_base;
}

__attribute__((constructor)) static void begin(void) {
    const char *text = getenv("NODE_CLOCK");
    double its_ahead, its_drift, its_base;
    if (text && sscanf(text, "%lf %lf %lf", &its_ahead, &its_drift, &its_base) == 3)
        set_node_clock(its_ahead, its_drift, its_base);
    if ((text = getenv("NODE_CLOCK_FILE")))
        follow(text);
}

static int is_wall(clockid_t id) { return id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE; }

static int is_shown(clockid_t id) {
    return is_wall(id) || id == CLOCK_MONOTONIC || id == CLOCK_MONOTONIC_COARSE || id == CLOCK_MONOTONIC_RAW ||
           id == CLOCK_BOOTTIME;
}

static void add(struct timespec *at, double seconds) {
    long whole = (long)seconds;
    at->tv_sec += whole;
    at->tv_nsec += (long)((seconds - (double)whole) * 1e9);
    if (at->tv_nsec < 0) {
        at->tv_nsec += 1000000000L;
        at->tv_sec--;
    } else if (at->tv_nsec >= 1000000000L) {
        at->tv_nsec -= 1000000000L;
        at->tv_sec++;
    }
}

/* How far this clock is from the kernel's now. */
static double error_of(clockid_t id) {
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    double since = (double)now.tv_sec + (double)now.tv_nsec * 1e-9 - base;
    double wall = set_ahead ? *set_ahead : ahead;
    return (is_wall(id) ? wall : 0.0) + (base != 0.0 ? drift * since : 0.0);
}

int clock_gettime(clockid_t id, struct timespec *at) {
    int failed = (int)syscall(SYS_clock_gettime, id, at);
    if (!failed && is_shown(id))
        add(at, error_of(id));
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}

/* Python sleeps until a moment of its monotonic clock. Returns the error, as the original does. */
int clock_nanosleep(clockid_t id, int flags, const struct timespec *until, struct timespec *left) {
    struct timespec its = *until;
    if ((flags & TIMER_ABSTIME) && is_shown(id))
        add(&its, -error_of(id));
    return syscall(SYS_clock_nanosleep, id, flags, &its, left) ? errno : 0;
}

/* In Linux's 64-bit ABIs both names of each call have the same structure. */
static int shown(int failed, struct stat *about) {
    if (!failed) {
        double seconds = error_of(CLOCK_REALTIME);
        add(&about->st_atim, seconds);
        add(&about->st_mtim, seconds);
        add(&about->st_ctim, seconds);
    }
    return failed;
}

int fstatat(int folder, const char *restrict path, struct stat *restrict about, int flags) {
    return shown((int)syscall(SYS_newfstatat, folder, path, about, flags), about);
}

int fstat(int file, struct stat *about) { return shown((int)syscall(SYS_fstat, file, about), about); }

int stat(const char *restrict path, struct stat *restrict about) { return fstatat(AT_FDCWD, path, about, 0); }

int lstat(const char *restrict path, struct stat *restrict about) {
    return fstatat(AT_FDCWD, path, about, AT_SYMLINK_NOFOLLOW);
}

int fstatat64(int folder, const char *restrict path, struct stat64 *restrict about, int flags) {
    return fstatat(folder, path, (struct stat *)about, flags);
}

int fstat64(int file, struct stat64 *about) { return fstat(file, (struct stat *)about); }

int stat64(const char *restrict path, struct stat64 *restrict about) { return stat(path, (struct stat *)about); }

int lstat64(const char *restrict path, struct stat64 *restrict about) { return lstat(path, (struct stat *)about); }
