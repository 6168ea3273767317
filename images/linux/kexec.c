/* kexec KERNEL INITRD WORDS: starts another kernel in place of this one, at once. */
#include <fcntl.h>
#include <linux/reboot.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int opened(const char *path)
{
	int fd = open(path, O_RDONLY);

	if (fd < 0)
		perror(path);
	return fd;
}

int main(int argc, char **argv)
{
	int kernel, initrd;

	if (argc != 4)
		return 2;
	kernel = opened(argv[1]);
	initrd = opened(argv[2]);
	if (kernel < 0 || initrd < 0)
		return 1;
	if (syscall(SYS_kexec_file_load, kernel, initrd, strlen(argv[3]) + 1, argv[3], 0UL) != 0) {
		perror("kexec: load");
		return 1;
	}
	syscall(SYS_reboot, LINUX_REBOOT_MAGIC1, LINUX_REBOOT_MAGIC2, LINUX_REBOOT_CMD_KEXEC, NULL);
	perror("kexec");
	return 1;
}
