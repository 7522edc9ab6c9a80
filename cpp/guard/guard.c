/* Outlives the server by a moment: when the server has ended, however it did, every job that it may have stopped, or
   let run only when nobody else wants the cores, goes on as if there had been no server.

   Reads records from its standard input, a pipe that only the server writes to; its end is the end of the server. */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
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
enum { LAST = 19, SESSION_ATTEMPTS = 50 }; /* the nice value of a session in the background; 20 ms apart */

/* How a job is in the background: a control group was made for it, its own comes last, or its session does. */
enum { NOT_IN_BACKGROUND = 0, GROUP_MADE = 1, OWN_GROUP = 2, SESSION = 3 };

struct record {
  int32_t op;
  int32_t pid;
  int32_t group; /* 1: all processes of the group that the process leads */
  int32_t idle;  /* 1: its threads may be in the idle class and belong into the normal one */
  int32_t background;
  int32_t before;         /* nice value of the session, or weight of the group; 0: it has none */
  int32_t session;        /* its id */
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

static void pause_ms(long ms) {
  const struct timespec pause = {.tv_sec = 0, .tv_nsec = ms * 1000000};
  nanosleep(&pause, NULL);
}

/* Writes into a file that is there; returns 0 or the error. */
static int write_number(const char* folder, const char* name, int number) {
  char path[PATH_NBYTES + 64], text[16];
  snprintf(path, sizeof(path), "%s%s", folder, name);
  int file = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
  if (file < 0) return errno;
  int n = snprintf(text, sizeof(text), "%d", number);
  int error = write(file, text, (size_t)n) == n ? 0 : errno;
  close(file);
  return error;
}

static void tell(const char* path, int error) {
  if (error == 0 || error == ENOENT || error == ESRCH || error == ENODEV) return; /* put back, or it has ended */
  fprintf(stderr, "polymux: %s cannot be put back: %s\n", path, strerror(error));
}

/* Moves all processes of a control group into the one above, and removes it: at once, or when those that are ending
   have ended. */
static void dissolve(const char* group) {
  char path[PATH_NBYTES + 64];
  snprintf(path, sizeof(path), "%s/cgroup.procs", group);
  for (int attempt = 0; attempt < ATTEMPTS; ++attempt) {
    FILE* file = fopen(path, "re");
    if (file == NULL) return;
    for (int pid = 0; fscanf(file, "%d", &pid) == 1;) write_number(group, "/../cgroup.procs", pid);
    fclose(file);
    if (rmdir(group) == 0 || errno != EBUSY) return;
    pause_ms(5);
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

/* Finds the group and the session of a process; returns 0 when it has ended. */
static int belongs_to(int pid, int* group, int* session) {
  char path[64], text[512];
  snprintf(path, sizeof(path), "/proc/%d/stat", pid);
  FILE* file = fopen(path, "re");
  if (file == NULL) return 0;
  size_t n = fread(text, 1, sizeof(text) - 1, file);
  fclose(file);
  text[n] = '\0';
  char* behind_name = strrchr(text, ')');
  int parent = 0;
  char state = 0;
  return behind_name != NULL && sscanf(behind_name + 1, " %c %d %d %d", &state, &parent, group, session) == 4;
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
    int pid = atoi(entry->d_name), its_group = -1, its_session = -1;
    if (belongs_to(pid, &its_group, &its_session) && its_group == group) make_normal(pid);
  }
  closedir(processes);
}

/* Gives a session its nice value back through one of its processes, if it is still the one of the background. */
static int put_session_back(const char* path, int before) {
  int nice = 0;
  FILE* file = fopen(path, "re");
  if (file == NULL) return errno;
  int n = fscanf(file, "%*s nice %d", &nice);
  fclose(file);
  if (n != 1 || nice != LAST) return ESRCH;
  int error = EAGAIN; /* without a privilege the kernel takes one such change in 100 ms */
  for (int attempt = 0; attempt < SESSION_ATTEMPTS && error == EAGAIN; ++attempt) {
    if (attempt > 0) pause_ms(20);
    error = write_number(path, "", before);
  }
  return error;
}

/* The process that was named may have ended; any other of the session does. */
static int put_back_through_any(int session, int before) {
  DIR* processes = opendir("/proc");
  if (processes == NULL) return errno;
  int error = ESRCH;
  for (struct dirent* entry; error == ESRCH && (entry = readdir(processes)) != NULL;) {
    if (!isdigit((unsigned char)entry->d_name[0])) continue;
    int pid = atoi(entry->d_name), its_group = -1, its_session = -1;
    if (!belongs_to(pid, &its_group, &its_session) || its_session != session) continue;
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/autogroup", pid);
    error = put_session_back(path, before);
    if (error == ENOENT) error = ESRCH;
  }
  closedir(processes);
  return error;
}

static void leave_background(const struct watched* watched_job) {
  const struct record* job = &watched_job->job;
  if (job->background == GROUP_MADE) dissolve(job->path);
  if (job->background == OWN_GROUP) {
    tell(job->path, write_number(job->path, "/cpu.idle", 0));
    if (job->before > 0) { /* to be idle has cost the group its weight; the file's name is the version's */
      int error = write_number(job->path, "/cpu.weight", job->before);
      tell(job->path, error == ENOENT ? write_number(job->path, "/cpu.shares", job->before) : error);
    }
  }
  if (job->background == SESSION) {
    int error = is_same(watched_job) ? put_session_back(job->path, job->before) : ESRCH;
    if (error == ESRCH || error == ENOENT) error = put_back_through_any(job->session, job->before);
    tell(job->path, error);
  }
}

static void let_go_on(const struct watched* watched_job) {
  const struct record* job = &watched_job->job;
  if (job->group) {
    kill(-job->pid, SIGCONT);
    if (job->idle) make_group_normal(job->pid);
  } else if (is_same(watched_job)) {
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
  for (int i = 0; i < n_watched; ++i) let_go_on(&watched[i]);
  for (int i = 0; i < n_watched; ++i) leave_background(&watched[i]); /* may take a while for each */
  fprintf(stderr, "polymux: the server has ended; %d of its jobs go on without it\n", n_watched);
  return 0;
}
