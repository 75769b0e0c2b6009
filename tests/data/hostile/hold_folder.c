/* As root, in place of `fusermount3 -o allow_other` by a user: hold_folder FOLDER UID SECONDS. Mounts a file system of
 * that user at FOLDER which answers no question about it.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

int main(int count, char **words) {
    static char question[1 << 20];
    char options[128];
    if (count < 4) return 64;
    int device = open("/dev/fuse", O_RDWR);
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=%s,group_id=%s,allow_other", device, words[2], words[2]);
    if (device < 0 || mount("held", words[1], "fuse", MS_NOSUID | MS_NODEV, options)) {
        perror(words[1]);
        return 1;
    }
    alarm(atoi(words[3]));
    puts("mounted");
    fflush(stdout);
    while (read(device, question, sizeof question) > 0) {
        struct fuse_in_header *asked = (void *)question;
        struct {
            struct fuse_out_header head;
            struct fuse_init_out init;
        } reply;
        if (asked->opcode != FUSE_INIT) continue;
        memset(&reply, 0, sizeof reply);
        reply.head.unique = asked->unique;
        reply.head.len = sizeof reply;
        reply.init.major = 7;
        reply.init.minor = 31;
        reply.init.max_write = 65536;
        if (write(device, &reply, sizeof reply) < 0) return 1;
    }
    return 0;
}
