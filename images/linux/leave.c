/* leave STATUS: ends the machine with this status, by way of the VMM's exit port. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/io.h>

#define EXIT_PORT 0xf4

int main(int argc, char **argv)
{
	if (ioperm(EXIT_PORT, 1, 1) != 0) {
		perror("leave: ioperm");
		return 1;
	}
	outb(argc > 1 ? atoi(argv[1]) : 0, EXIT_PORT);
	return 0;
}
