/* Asks this node's agent whether a job may start, for a prolog that starts no Python.
 *
 *     laggard-ask ask SOCKET SECONDS MOST_SECONDS QUESTION
 *         0: the agent's report stands for a check, and says nothing against the job. 1: the gate has to look itself.
 *         2: no answer that counts. SECONDS: for the first word; MOST_SECONDS: for the whole, where the agent says WAIT.
 *     laggard-ask lock DESCRIPTOR SECONDS
 *         0: the open file DESCRIPTOR is locked, for as long as the caller holds it open. 1: not within SECONDS.
 *     laggard-ask log WORDS...
 *         0: one line is in the system's log, for the job SLURM_JOB_ID.
 *
 * It must not be led by another user's socket. The folder of the socket belongs to root, to this user, or to the one to
 * whom root gave it: whatever is above it is root's (or this user's), and nobody else can write there. The socket, and
 * the process that listens, must belong to the same users. The answer is a line of few words, of which one passes the
 * job; it never rejects one. docs/contracts.md has the protocol.
 *
 *     cc -O2 -Wall -o /etc/laggard/slurm/laggard-ask deploy/slurm/laggard-ask.c
 *
 * Under the name laggard-prolog, beside prolog.sh, it is a prolog for slurm.conf that does not even start a shell: it asks
 * what prolog.sh would ask, as that has written it down in RUN/gate-asks, and is prolog.sh in every other case.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#ifndef RUN
#define RUN "/run/laggard"
#endif

enum { PASSES = 0, LOOK = 1, NO_ANSWER = 2, NOT_ASKED = 3, WRONG_USAGE = 64 };
enum { MAX_QUESTION = 500, MAX_ANSWER = 128, MAX_TEXT = 900, RETRY_MS = 5, MAX_SECONDS = 86400 };

static int no_answer(const char *why, const char *what)
{
    fprintf(stderr, "laggard: the agent was not asked: %s%s\n", what, why);
    return NO_ANSWER;
}

static long long now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

/* -1: it is no whole number from 0 to most. */
static long number(const char *text, long most)
{
    long value = 0;
    if (!*text)
        return -1;
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || (value = value * 10 + (*text - '0')) > most)
            return -1;
    }
    return value;
}

static int is_trusted(uid_t user)
{
    return user == 0 || user == geteuid();
}

/* Whether all folders above `path` are trusted users', with nobody else able to put anything at this name. */
static int is_safe_above(const char *path)
{
    char folder[PATH_MAX];
    struct stat there;
    int is_parent = 1;
    if (path[0] != '/' || strlen(path) >= sizeof folder)
        return 0;
    strcpy(folder, path);
    for (;;) {
        char *end = strrchr(folder, '/');
        int at_root = end == folder;
        end[at_root] = 0;
        if (lstat(folder, &there) || !S_ISDIR(there.st_mode) || !is_trusted(there.st_uid))
            return 0;
        /* Above the parent a sticky folder, as /tmp is one, keeps others from what is not theirs. */
        if ((there.st_mode & 022) && (is_parent || !(there.st_mode & S_ISVTX)))
            return 0;
        if (at_root)
            return 1;
        is_parent = 0;
    }
}

/* The user who may listen at the socket beside those who are trusted anyway, into `owner`. Returns what is wrong. */
static const char *check_place(const char *path, uid_t *owner)
{
    char folder[PATH_MAX];
    struct stat there;
    char *end;
    if (path[0] != '/' || strlen(path) >= sizeof ((struct sockaddr_un *)0)->sun_path)
        return " is no path of a socket";
    strcpy(folder, path);
    end = strrchr(folder, '/');
    *end = 0;
    if (end == folder || lstat(folder, &there))
        return " is not there";
    if (!is_safe_above(folder))
        return ": others can put a folder there";
    if (!S_ISDIR(there.st_mode) || (there.st_mode & 022))
        return ": others can write into its folder";
    *owner = there.st_uid;
    if (lstat(path, &there))
        return " is not there";
    if (!S_ISSOCK(there.st_mode))
        return " is no socket";
    if (!is_trusted(there.st_uid) && there.st_uid != *owner)
        return " is another user's";
    return NULL;
}

/* Whether `socket` can be read or written until `until`. */
static int is_ready(int socket, short events, long long until)
{
    struct pollfd one = {socket, events, 0};
    for (;;) {
        long long left = until - now_ms();
        int found = left > 0 ? poll(&one, 1, (int)left) : 0;
        if (found > 0)
            return 1;
        if (found == 0 || errno != EINTR)
            return 0;
    }
}

static int connect_until(int socket, const char *path, long long until)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, path);
    while (connect(socket, (struct sockaddr *)&address, sizeof address)) {
        if (errno != EAGAIN && errno != EINTR) /* EAGAIN: its queue is full for the moment */
            return 0;
        if (now_ms() >= until) {
            errno = ETIMEDOUT;
            return 0;
        }
        poll(NULL, 0, RETRY_MS);
    }
    return 1;
}

/* Reads one line into `line`, without its end. Returns what is wrong. */
static const char *read_line(int socket, char *line, long long until)
{
    int length = 0;
    while (length < MAX_ANSWER) {
        ssize_t got; /* one byte at a time: what comes behind the line is the next one's */
        if (!is_ready(socket, POLLIN, until))
            return " does not answer in time";
        got = recv(socket, line + length, 1, 0);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            continue;
        if (got <= 0)
            return " broke off";
        if (line[length] == '\n') {
            line[length] = 0;
            return NULL;
        }
        if (line[length] < ' ' || line[length] > '~')
            break;
        length++;
    }
    return " answers something else";
}

static void write_log(int priority, const char *text)
{
    const char *job = getenv("SLURM_JOB_ID");
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "/dev/log"};
    char line[MAX_TEXT + 100];
    int length, to = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int has_job = job && *job && strlen(job) < 20 && strspn(job, "0123456789") == strlen(job);
    length = snprintf(line, sizeof line, "<%d>laggard[%d]: %s%s%s%.*s", priority, (int)getpid(), has_job ? "job " : "",
                      has_job ? job : "", has_job ? ": " : "", MAX_TEXT, text);
    if (to >= 0 && length > 0)
        sendto(to, line, (size_t)length, MSG_NOSIGNAL, (struct sockaddr *)&address, sizeof address);
    if (to >= 0)
        close(to);
}

/* `PASS AGE`, with an age in seconds. */
static int passes(const char *line, long *age)
{
    if (strncmp(line, "PASS ", 5))
        return 0;
    *age = number(line + 5, 99999);
    return *age >= 0;
}

static int tell_pass(long age)
{
    char text[MAX_ANSWER];
    snprintf(text, sizeof text, "laggard: nothing critical (the agent, %ld s ago); gate: pass, nothing critical", age);
    fprintf(stderr, "%s\n", text);
    write_log(30, text); /* daemon.info */
    return PASSES;
}

static int is_reason(const char *line)
{
    const char *word = line + 6;
    return !strncmp(line, "CHECK ", 6) && *word && strspn(word, "abcdefghijklmnopqrstuvwxyz") == strlen(word);
}

static int talk(int socket, const char *path, uid_t owner, const char *question, long first_s, long most_s)
{
    long long began = now_ms(), until = began + first_s * 1000LL;
    struct ucred peer;
    socklen_t size = sizeof peer;
    char line[MAX_ANSWER + 1];
    const char *wrong;
    char text[MAX_QUESTION];
    int length = snprintf(text, sizeof text, "%s\n", question);
    long age;
    if (!connect_until(socket, path, until))
        return no_answer(strerror(errno), "");
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size))
        return no_answer(strerror(errno), "");
    if (!is_trusted(peer.uid) && peer.uid != owner)
        return no_answer(": another user listens there", path);
    if (send(socket, text, (size_t)length, MSG_NOSIGNAL) != length)
        return no_answer(" took no question", path);
    wrong = read_line(socket, line, until);
    if (!wrong && !strcmp(line, "WAIT"))
        wrong = read_line(socket, line, began + most_s * 1000LL);
    if (wrong)
        return no_answer(wrong, path);
    if (passes(line, &age))
        return tell_pass(age);
    return is_reason(line) ? LOOK : no_answer(" answers something else", path);
}

static int ask(char **words)
{
    long first = number(words[1], MAX_SECONDS), most = number(words[2], MAX_SECONDS);
    uid_t owner = 0;
    const char *wrong = check_place(words[0], &owner);
    int connection, status;
    if (first < 0 || most < 0 || strlen(words[3]) + 2 > MAX_QUESTION)
        return WRONG_USAGE;
    if (wrong)
        return no_answer(wrong, words[0]);
    connection = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (connection < 0)
        return no_answer(strerror(errno), "");
    status = talk(connection, words[0], owner, words[3], first, most);
    close(connection);
    return status;
}

static void on_alarm(int signal)
{
    (void)signal;
}

static int lock(char **words)
{
    long descriptor = number(words[0], INT_MAX / 2), seconds = number(words[1], MAX_SECONDS);
    struct sigaction action = {.sa_handler = on_alarm};
    struct itimerval limit = {.it_interval = {0, 100000}, .it_value = {seconds, 0}};
    if (descriptor < 0 || seconds < 0)
        return WRONG_USAGE;
    if (seconds == 0)
        return flock((int)descriptor, LOCK_EX | LOCK_NB) ? 1 : 0;
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &limit, NULL);
    return flock((int)descriptor, LOCK_EX) ? 1 : 0;
}

static int log_words(int count, char **words)
{
    char text[MAX_TEXT] = "";
    size_t length = 0;
    for (int i = 0; i < count; i++) {
        int more = snprintf(text + length, sizeof text - length, "%s%s", i ? " " : "", words[i]);
        if (more < 0 || (length += (size_t)more) >= sizeof text)
            break;
    }
    for (char *at = text; *at; at++)
        if ((unsigned char)*at < ' ' || *at == 127)
            *at = ' ';
    write_log(28, text); /* daemon.warning */
    return 0;
}

/* --- laggard-prolog */

enum { MAX_ASKS = 12288, LINES = 4, TICKET_TICKS = 360000 };

/* Reads a file of this user's, and no other, into `text`. Returns its length, or -1. */
static int read_own(const char *path, char *text, int most, struct timespec *changed)
{
    struct stat there;
    int length = -1, file = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0)
        return -1;
    if (!fstat(file, &there) && S_ISREG(there.st_mode) && there.st_uid == geteuid())
        length = (int)read(file, text, (size_t)most - 1);
    if (length >= 0)
        text[length] = 0;
    *changed = there.st_mtim;
    close(file);
    return length;
}

/* Whether `path` is not there, or was last changed before `then`. */
static int is_older(const char *path, struct timespec then)
{
    struct stat there;
    if (stat(path, &there))
        return errno == ENOENT;
    return there.st_mtim.tv_sec < then.tv_sec ||
           (there.st_mtim.tv_sec == then.tv_sec && there.st_mtim.tv_nsec < then.tv_nsec);
}

static long long uptime_ticks(void)
{
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return now.tv_sec * 100LL + now.tv_nsec / 10000000;
}

/* Seconds since boot of what the gate changed last, 0: nothing, -1: not known. */
static long long last_change(void)
{
    char text[32];
    struct timespec changed;
    long ticks;
    if (access(RUN "/gate-changed", F_OK))
        return errno == ENOENT ? 0 : -1;
    if (read_own(RUN "/gate-changed", text, sizeof text, &changed) < 0)
        return -1;
    text[strcspn(text, "\n")] = 0;
    ticks = number(text, LONG_MAX / 16);
    return ticks < 0 ? -1 : ticks / 100;
}

/* Whether nothing but this user, or root, can have written RUN/gate-asks, and it still holds. Its lines: the ticket, the
 * file that switches the gate off, laggard, and how many seconds an answer may take. */
static int holds(const char *folder, char **lines, char *text)
{
    char conf[PATH_MAX];
    struct timespec written;
    struct stat there;
    char *at = text, hash[33], end;
    long long ticks, now = uptime_ticks();
    if (lstat(RUN, &there) || !S_ISDIR(there.st_mode) || there.st_uid != geteuid() || (there.st_mode & 022))
        return 0;
    if (read_own(RUN "/gate-asks", text, MAX_ASKS, &written) <= 0)
        return 0;
    for (int i = 0; i < LINES; i++) {
        lines[i] = at;
        if (!(at = strchr(at, '\n')))
            return 0;
        *at++ = 0;
    }
    if (sscanf(lines[0], "gate/1 prolog %32[0-9a-f] %15lld%c", hash, &ticks, &end) != 2 || strlen(hash) != 32)
        return 0;
    if (ticks < 0 || ticks > now || now - ticks >= TICKET_TICKS)
        return 0;
    if (snprintf(conf, sizeof conf, "%s/gate.conf", folder) >= (int)sizeof conf)
        return 0;
    return *at == 0 && lines[1][0] == '/' && lines[2][0] == '/' && is_older(conf, written) && is_older(lines[2], written);
}

static int prolog_asks(const char *folder)
{
    static char text[MAX_ASKS], question[MAX_QUESTION], boot[64];
    char *lines[LINES], *words[4], hash[33], *gpus = getenv("SLURM_JOB_GPUS");
    struct stat there;
    long long newer;
    long most;
    int file, length, written;
    if (!holds(folder, lines, text) || !lstat(lines[1], &there) || errno != ENOENT)
        return NOT_ASKED;
    most = number(lines[3], 60);
    newer = last_change();
    gpus = gpus && *gpus ? gpus : "-";
    if (most < 0 || newer < 0 || (strcmp(gpus, "-") && strspn(gpus, "0123456789,-") != strlen(gpus)))
        return NOT_ASKED;
    file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    length = file < 0 ? -1 : (int)read(file, boot, sizeof boot - 1);
    if (file >= 0)
        close(file);
    if (length < 36)
        return NOT_ASKED;
    sscanf(lines[0], "gate/1 prolog %32s", hash);
    written = snprintf(question, sizeof question, "gate/1 prolog %s %.36s %lld %s %ld000", hash, boot, newer, gpus, most);
    if (written >= MAX_QUESTION - 2)
        return NOT_ASKED;
    char first[] = "2", longest[24];
    snprintf(longest, sizeof longest, "%ld", most + 1);
    words[0] = RUN "/agent/gate.sock", words[1] = first, words[2] = longest, words[3] = question;
    return ask(words);
}

static int prolog(char **words)
{
    char folder[PATH_MAX], script[PATH_MAX + 16];
    ssize_t length = readlink("/proc/self/exe", folder, sizeof folder - 1);
    char *slash;
    int status;
    if (length < 0)
        return 0; /* no prolog is to be run that nobody knows: it would drain the node */
    folder[length] = 0;
    if ((slash = strrchr(folder, '/')))
        *slash = 0;
    status = prolog_asks(folder);
    if (status == PASSES)
        return 0;
    if (status != NOT_ASKED)
        setenv("LAGGARD_ASKED", "1", 1); /* prolog.sh need not ask again */
    snprintf(script, sizeof script, "%s/prolog.sh", folder);
    words[0] = script;
    execv(script, words);
    fprintf(stderr, "laggard: cannot run %s: %s\n", script, strerror(errno));
    return 0;
}

int main(int count, char **words)
{
    const char *name = strrchr(words[0], '/');
    if (!strcmp(name ? name + 1 : words[0], "laggard-prolog"))
        return prolog(words);
    if (count == 6 && !strcmp(words[1], "ask"))
        return ask(words + 2);
    if (count == 4 && !strcmp(words[1], "lock"))
        return lock(words + 2);
    if (count > 2 && !strcmp(words[1], "log"))
        return log_words(count - 2, words + 2);
    fprintf(stderr, "laggard-ask ask SOCKET SECONDS MOST_SECONDS QUESTION | lock DESCRIPTOR SECONDS | log WORDS...\n");
    return WRONG_USAGE;
}
