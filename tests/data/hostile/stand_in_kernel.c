/* stand_in_kernel HOW: waits in the kernel, after it has printed its process id, until it is killed.
 *
 * uninterruptible: as the parent of a vfork(2) whose child neither executes nor ends; traced: stopped by the process that
 * started it here; spin: on the CPU, in no system call.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

static void tell(pid_t pid) {
    printf("%d\n", pid);
    fflush(stdout);
}

int main(int count, char **words) {
    if (count < 2) return 64;
    alarm(240);
    if (!strcmp(words[1], "uninterruptible")) {
        tell(getpid());
        if (vfork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            alarm(240);
            for (;;) pause();
        }
    } else if (!strcmp(words[1], "traced")) {
        pid_t child = fork();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            ptrace(PTRACE_TRACEME, 0, NULL, NULL);
            raise(SIGSTOP);
            _exit(1);
        }
        waitpid(child, NULL, WUNTRACED);
        tell(child);
        for (;;) pause();
    } else {
        tell(getpid());
        for (volatile long turns = 0;; turns++) {}
    }
    return 1;
}
