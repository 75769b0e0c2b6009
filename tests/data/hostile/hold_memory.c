/* As an ordinary user: hold_memory SECONDS NAME. Takes NAME, and makes everybody wait who reads this process's
 * environment or command line.
 *
 * A file system in a user namespace of its own (FUSE) has one file, whose pages never come. One thread reads such a page
 * of this process's memory, and so holds the lock of that memory; another waits to change it, which keeps out all
 * others. Prints its process id when that is so.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

static void *page;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void write_text(const char *path, const char *text) {
    int file = open(path, O_WRONLY);
    if (file < 0 || write(file, text, strlen(text)) < 0) fail(path);
    close(file);
}

static void map_one(const char *path, unsigned id) {
    char text[64];
    snprintf(text, sizeof text, "0 %u 1", id);
    write_text(path, text);
}

static void serve(int device) {
    static char asked[1 << 20];
    static struct {
        struct fuse_out_header head;
        union {
            struct fuse_init_out init;
            struct fuse_entry_out entry;
            struct fuse_attr_out attr;
            struct fuse_open_out open;
        } body;
    } reply;
    while (read(device, asked, sizeof asked) > 0) {
        struct fuse_in_header *question = (void *)asked;
        size_t size = 0;
        memset(&reply, 0, sizeof reply);
        reply.head.unique = question->unique;
        if (question->opcode == FUSE_READ || question->opcode == FUSE_FORGET || question->opcode == FUSE_BATCH_FORGET ||
            question->opcode == FUSE_INTERRUPT)
            continue; /* a page that is asked for never comes */
        if (question->opcode == FUSE_INIT) {
            reply.body.init.major = 7;
            reply.body.init.minor = 31;
            reply.body.init.max_write = 65536;
            size = sizeof reply.body.init;
        } else if (question->opcode == FUSE_LOOKUP) {
            reply.body.entry.nodeid = 2;
            reply.body.entry.attr_valid = reply.body.entry.entry_valid = 1000;
            reply.body.entry.attr.ino = 2;
            reply.body.entry.attr.mode = S_IFREG | 0644;
            reply.body.entry.attr.nlink = 1;
            reply.body.entry.attr.size = 1 << 16;
            size = sizeof reply.body.entry;
        } else if (question->opcode == FUSE_GETATTR) {
            reply.body.attr.attr_valid = 1000;
            reply.body.attr.attr.ino = question->nodeid;
            reply.body.attr.attr.mode = question->nodeid == 1 ? S_IFDIR | 0755 : S_IFREG | 0644;
            reply.body.attr.attr.nlink = 1;
            reply.body.attr.attr.size = 1 << 16;
            size = sizeof reply.body.attr;
        } else if (question->opcode == FUSE_OPEN) {
            size = sizeof reply.body.open;
        } else {
            reply.head.error = -38; /* ENOSYS */
        }
        reply.head.len = sizeof reply.head + size;
        if (write(device, &reply, reply.head.len) < 0) return;
    }
}

static void *read_page(void *unused) {
    char byte;
    int memory = open("/proc/self/mem", O_RDONLY);
    if (memory < 0 || pread(memory, &byte, 1, (off_t)page) < 0) perror("mem");
    return unused;
}

static void *change_memory(void *unused) {
    usleep(300000);
    mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return unused;
}

int main(int count, char **words) {
    unsigned user = getuid(), group = getgid();
    int seconds = count > 1 ? atoi(words[1]) : 60;
    char folder[] = "/tmp/holdXXXXXX", options[128], path[64];
    pthread_t one, two;
    if (!mkdtemp(folder)) fail(folder);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS)) fail("unshare");
    write_text("/proc/self/setgroups", "deny");
    map_one("/proc/self/uid_map", user);
    map_one("/proc/self/gid_map", group);
    int device = open("/dev/fuse", O_RDWR);
    if (device < 0) fail("/dev/fuse");
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", device);
    if (mount("held", folder, "fuse", MS_NOSUID | MS_NODEV, options)) fail("mount");
    if (!fork()) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(seconds + 5);
        serve(device);
        _exit(0);
    }
    close(device);
    snprintf(path, sizeof path, "%s/file", folder);
    int file = open(path, O_RDONLY);
    if (file < 0) fail(path);
    page = mmap(0, 4096, PROT_READ, MAP_PRIVATE, file, 0);
    if (page == MAP_FAILED) fail("mmap");
    if (umount2(folder, MNT_DETACH) || rmdir(folder)) perror(folder); /* it lives on while it is mapped */
    prctl(PR_SET_NAME, count > 2 ? words[2] : "held");
    printf("%d\n", getpid());
    fflush(stdout);
    alarm(seconds);
    pthread_create(&one, 0, read_page, 0);
    pthread_create(&two, 0, change_memory, 0);
    for (;;) pause();
}
