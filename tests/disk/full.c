/* A disk that is full at one write, or from one on: put before the C library by LD_PRELOAD.
 *
 * Counted is what needs room on the disk below the directory DISK_BELOW: files that are made, directories, and every
 * write. The one of number DISK_FAILS fails with ENOSPC, and with DISK_STAYS every one after it. How many there were is
 * written to DISK_COUNT at the end. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { DESCRIPTORS = 4096 };

static const char *below;
static long fails = LONG_MAX;
static int stays, told = -1;
static atomic_long asked;
static atomic_bool counted[DESCRIPTORS];

static int (*next_open)(const char *, int, ...);
static int (*next_close)(int);
static int (*next_mkdir)(const char *, mode_t);
static ssize_t (*next_write)(int, const void *, size_t);
static ssize_t (*next_pwrite)(int, const void *, size_t, off64_t);
static ssize_t (*next_writev)(int, const struct iovec *, int);

__attribute__((constructor)) static void begin(void)
{
	const char *number = getenv("DISK_FAILS"), *count = getenv("DISK_COUNT");

	next_open = dlsym(RTLD_NEXT, "open64");
	next_close = dlsym(RTLD_NEXT, "close");
	next_mkdir = dlsym(RTLD_NEXT, "mkdir");
	next_write = dlsym(RTLD_NEXT, "write");
	next_pwrite = dlsym(RTLD_NEXT, "pwrite64");
	next_writev = dlsym(RTLD_NEXT, "writev");
	below = getenv("DISK_BELOW");
	stays = getenv("DISK_STAYS") != NULL;
	if (number)
		fails = atol(number);
	if (count)
		told = next_open(count, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
}

__attribute__((destructor)) static void end(void)
{
	char text[32];
	int length = snprintf(text, sizeof text, "%ld", (long)asked);

	if (told >= 0 && next_write(told, text, length) != length)
		abort();
}

/* Whether there is room for one more. */
static int has_room(void)
{
	long number = ++asked;

	if (number != fails && (number < fails || !stays))
		return 1;
	errno = ENOSPC;
	return 0;
}

static int is_below(const char *path)
{
	return below && !strncmp(path, below, strlen(below));
}

static int is_counted(int fd)
{
	return fd >= 0 && fd < DESCRIPTORS && counted[fd];
}

int open64(const char *path, int flags, ...)
{
	va_list more;
	mode_t mode;
	int fd;

	va_start(more, flags);
	mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;
	va_end(more);
	if (is_below(path) && flags & O_CREAT && !has_room())
		return -1;
	fd = next_open(path, flags, mode);
	if (fd >= 0 && fd < DESCRIPTORS)
		counted[fd] = is_below(path);
	return fd;
}

int close(int fd)
{
	if (fd >= 0 && fd < DESCRIPTORS)
		counted[fd] = 0;
	return next_close(fd);
}

int mkdir(const char *path, mode_t mode)
{
	if (is_below(path) && !has_room())
		return -1;
	return next_mkdir(path, mode);
}

ssize_t write(int fd, const void *from, size_t bytes)
{
	if (is_counted(fd) && !has_room())
		return -1;
	return next_write(fd, from, bytes);
}

ssize_t pwrite64(int fd, const void *from, size_t bytes, off64_t at)
{
	if (is_counted(fd) && !has_room())
		return -1;
	return next_pwrite(fd, from, bytes, at);
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
	if (is_counted(fd) && !has_room())
		return -1;
	return next_writev(fd, parts, count);
}
