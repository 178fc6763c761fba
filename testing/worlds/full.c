/* A full disk: writes to files below FULL_DIR fail with ENOSPC while the file FULL_FLAG exists. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>
static int full(int file) {
  char link[64], path[PATH_MAX];
  const char *folder = getenv("FULL_DIR"), *flag = getenv("FULL_FLAG");
  if (access(flag, F_OK)) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t size = readlink(link, path, sizeof path - 1);
  if (size < 0) return 0;
  path[size] = 0;
  if (strncmp(path, folder, strlen(folder))) return 0;
  errno = ENOSPC;
  return 1;
}
#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
ssize_t write(int file, const void *data, size_t size) { REAL(write); return full(file) ? -1 : real(file, data, size); }
ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) { REAL(pwrite64); return full(file) ? -1 : real(file, data, size, at); }
ssize_t writev(int file, const struct iovec *parts, int count) { REAL(writev); return full(file) ? -1 : real(file, parts, count); }
