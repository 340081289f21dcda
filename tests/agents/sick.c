/* Makes reads of chosen files fail or hang, for a process that has this library preloaded.
 *
 * SICK_RULES names a file of lines `<part of a path> <action>`; it is read anew at every call, so a
 * test can change it while the process runs. Actions: HANG (until the line is gone), or the name of
 * an errno. SICK_LOG names a file that gets one byte for each read that a rule met.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static int number_of(const char *name) {
    static const struct { const char *name; int number; } known[] = {
        {"EIO", EIO}, {"EINVAL", EINVAL}, {"ENODEV", ENODEV}, {"ETIME", ETIME}, {"EACCES", EACCES},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(name, known[i].name)) return known[i].number;
    return 0;
}

/* Raw calls: the functions of this file are the ones the C library's stdio would come back to. */
static int action_for(const char *path, char *action) {
    const char *rules = getenv("SICK_RULES");
    if (!rules || !strcmp(path, rules)) return 0;
    char text[4096];
    int file = (int)syscall(SYS_openat, AT_FDCWD, rules, O_RDONLY | O_CLOEXEC, 0);
    if (file < 0) return 0;
    ssize_t size = syscall(SYS_pread64, file, text, sizeof text - 1, 0);
    syscall(SYS_close, file);
    if (size <= 0) return 0;
    text[size] = 0;
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char part[512];
        if (sscanf(line, "%511s %15s", part, action) == 2 && strstr(path, part)) return 1;
    }
    return 0;
}

static int sick(const char *path) {
    char action[16];
    if (!action_for(path, action)) return 0;
    const char *log = getenv("SICK_LOG");
    if (log) {
        int file = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_APPEND | O_CREAT, 0600);
        if (file >= 0) {
            (void)!syscall(SYS_write, file, ".", 1);
            syscall(SYS_close, file);
        }
    }
    if (!strcmp(action, "HANG")) {
        do usleep(10000);
        while (action_for(path, action) && !strcmp(action, "HANG"));
        return 0;
    }
    return number_of(action);
}

static int sick_descriptor(int descriptor) {
    int before = errno;
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t size = readlink(link, path, sizeof path - 1);
    errno = before;
    if (size <= 0 || path[0] != '/') return 0;
    path[size] = 0;
    return sick(path);
}

#define FAIL_IF_SICK(descriptor) \
    do { int number = sick_descriptor(descriptor); if (number) { errno = number; return -1; } } while (0)

ssize_t pread64(int descriptor, void *buffer, size_t size, off64_t offset) {
    FAIL_IF_SICK(descriptor);
    return syscall(SYS_pread64, descriptor, buffer, size, offset);
}

ssize_t pread(int descriptor, void *buffer, size_t size, off_t offset) {
    return pread64(descriptor, buffer, size, offset);
}

ssize_t read(int descriptor, void *buffer, size_t size) {
    FAIL_IF_SICK(descriptor);
    return syscall(SYS_read, descriptor, buffer, size);
}
