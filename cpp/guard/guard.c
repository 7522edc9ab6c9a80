/* Outlives the server by a moment: when the server has ended, however it did, every job that it may have stopped, or
   let run only when nobody else wants the cores, goes on as if there had been no server.

   Reads records from its standard input, a pipe that only the server writes to; its end is the end of the server. */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { OP_WATCH = 1, OP_FORGET = 2 };
enum { MAX_WATCHED = 4096, PATH_NBYTES = 256, ATTEMPTS = 100 };

/* How a job is in the background: a control group was made for it, its own comes last, or its session does. */
enum { NOT_IN_BACKGROUND = 0, GROUP_MADE = 1, OWN_GROUP = 2, SESSION = 3 };

struct record {
  int32_t op;
  int32_t pid;
  int32_t group; /* 1: all processes of the group that the process leads */
  int32_t idle;  /* 1: its threads may be in the idle class and belong into the normal one */
  int32_t background;
  int32_t nice;           /* that the session had before */
  char path[PATH_NBYTES]; /* of the group's directory, or the file of the session's nice value */
};

struct watched {
  struct record job;
  int pidfd;
};

static struct watched watched[MAX_WATCHED];
static int n_watched;

static int find(int32_t pid) {
  for (int i = 0; i < n_watched; ++i) {
    if (watched[i].job.pid == pid) return i;
  }
  return -1;
}

static void forget(int at) {
  if (watched[at].pidfd >= 0) close(watched[at].pidfd);
  watched[at] = watched[--n_watched];
}

static void write_number(const char* folder, const char* name, int number) {
  char path[PATH_NBYTES + 64];
  snprintf(path, sizeof(path), "%s%s", folder, name);
  FILE* file = fopen(path, "we");
  if (file == NULL) return;
  fprintf(file, "%d", number);
  fclose(file);
}

/* Moves all processes of a control group into the one above, and removes it: at once, or when those that are ending
   have ended. */
static void dissolve(const char* group) {
  char path[PATH_NBYTES + 64];
  snprintf(path, sizeof(path), "%s/cgroup.procs", group);
  const struct timespec pause = {.tv_sec = 0, .tv_nsec = 5000000};
  for (int attempt = 0; attempt < ATTEMPTS; ++attempt) {
    FILE* file = fopen(path, "re");
    if (file == NULL) return;
    for (int pid = 0; fscanf(file, "%d", &pid) == 1;) write_number(group, "/../cgroup.procs", pid);
    fclose(file);
    if (rmdir(group) == 0 || errno != EBUSY) return;
    nanosleep(&pause, NULL);
  }
}

static void take(const struct record* record) {
  int at = find(record->pid);
  if (at >= 0) forget(at);
  if (record->op == OP_FORGET && record->background == GROUP_MADE) dissolve(record->path);
  if (record->op != OP_WATCH || record->pid <= 1 || n_watched == MAX_WATCHED) return;
  struct watched* new = &watched[n_watched++];
  new->job = *record;
  new->job.path[PATH_NBYTES - 1] = '\0';
  new->pidfd = (int)syscall(SYS_pidfd_open, record->pid, 0);
}

/* Whether the process that was named is still the one that was meant; a group outlives its leader. */
static int is_same(const struct watched* watched_job) {
  if (watched_job->pidfd < 0) return 0;
  struct pollfd ended = {.fd = watched_job->pidfd, .events = POLLIN};
  return poll(&ended, 1, 0) == 0;
}

static int group_of(int pid) {
  char path[64], text[512];
  snprintf(path, sizeof(path), "/proc/%d/stat", pid);
  FILE* file = fopen(path, "re");
  if (file == NULL) return -1;
  size_t n = fread(text, 1, sizeof(text) - 1, file);
  fclose(file);
  text[n] = '\0';
  char* behind_name = strrchr(text, ')');
  int parent = 0, group = -1;
  char state = 0;
  if (behind_name == NULL || sscanf(behind_name + 1, " %c %d %d", &state, &parent, &group) != 3) return -1;
  return group;
}

static void make_normal(int pid) {
  char path[64];
  snprintf(path, sizeof(path), "/proc/%d/task", pid);
  DIR* tasks = opendir(path);
  if (tasks == NULL) return;
  const struct sched_param none = {.sched_priority = 0};
  for (struct dirent* task; (task = readdir(tasks)) != NULL;) {
    int tid = atoi(task->d_name);
    if (tid > 0 && sched_getscheduler(tid) == SCHED_IDLE) sched_setscheduler(tid, SCHED_OTHER, &none);
  }
  closedir(tasks);
}

static void make_group_normal(int group) {
  DIR* processes = opendir("/proc");
  if (processes == NULL) return;
  for (struct dirent* entry; (entry = readdir(processes)) != NULL;) {
    if (!isdigit((unsigned char)entry->d_name[0])) continue;
    int pid = atoi(entry->d_name);
    if (group_of(pid) == group) make_normal(pid);
  }
  closedir(processes);
}

static void leave_background(const struct record* job, int same) {
  if (job->background == GROUP_MADE) dissolve(job->path);
  if (job->background == OWN_GROUP) write_number(job->path, "/cpu.idle", 0);
  if (job->background == SESSION && same) write_number(job->path, "", job->nice);
}

static void let_go(const struct watched* watched_job) {
  const struct record* job = &watched_job->job;
  int same = is_same(watched_job);
  leave_background(job, same);
  if (job->group) {
    kill(-job->pid, SIGCONT);
    if (job->idle) make_group_normal(job->pid);
  } else if (same) {
    kill(job->pid, SIGCONT);
    if (job->idle) make_normal(job->pid);
  }
}

int main(void) {
  const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGPIPE, SIGUSR1, SIGUSR2};
  for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); ++i) signal(ignored[i], SIG_IGN);
  setsid();
  if (chdir("/") != 0) return 1;
  struct record record;
  for (size_t have = 0;;) {
    ssize_t n = read(STDIN_FILENO, (char*)&record + have, sizeof(record) - have);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    have += (size_t)n;
    if (have < sizeof(record)) continue;
    have = 0;
    take(&record);
  }
  if (n_watched == 0) return 0;
  for (int i = 0; i < n_watched; ++i) let_go(&watched[i]);
  fprintf(stderr, "polymux: the server has ended; %d of its jobs go on without it\n", n_watched);
  return 0;
}
