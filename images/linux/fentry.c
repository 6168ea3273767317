/* fentry FUNCTION COMMAND [ARGUMENT]...: runs the command while a BPF program counts the calls of a function of the
 * kernel, at its entry (BPF_TRACE_FENTRY), and says how many there were. Without libbpf: the type's number comes from
 * the kernel's own BTF. */
#include <errno.h>
#include <linux/bpf.h>
#include <linux/btf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int bpf(int command, union bpf_attr *what)
{
	return (int)syscall(SYS_bpf, command, what, sizeof(*what));
}

/* Bytes behind a type, by its kind: Documentation/bpf/btf.rst. */
static size_t behind(const struct btf_type *type)
{
	size_t count = BTF_INFO_VLEN(type->info);

	switch (BTF_INFO_KIND(type->info)) {
	case BTF_KIND_INT:
	case BTF_KIND_VAR:
	case BTF_KIND_DECL_TAG:
		return 4;
	case BTF_KIND_ARRAY:
		return 12;
	case BTF_KIND_STRUCT:
	case BTF_KIND_UNION:
	case BTF_KIND_DATASEC:
	case BTF_KIND_ENUM64:
		return 12 * count;
	case BTF_KIND_ENUM:
	case BTF_KIND_FUNC_PROTO:
		return 8 * count;
	default:
		return 0;
	}
}

/* The number of a function, or 0. */
static uint32_t type_of(const char *name)
{
	static char bytes[16 << 20];
	FILE *file = fopen("/sys/kernel/btf/vmlinux", "r");
	size_t length = file ? fread(bytes, 1, sizeof(bytes), file) : 0;
	const struct btf_header *header = (void *)bytes;
	const char *at = bytes + header->hdr_len + header->type_off;
	const char *end = at + header->type_len;
	const char *names = bytes + header->hdr_len + header->str_off;

	for (uint32_t number = 1; length > 0 && at < end; number++) {
		const struct btf_type *type = (const void *)at;

		if (BTF_INFO_KIND(type->info) == BTF_KIND_FUNC &&
		    strcmp(names + type->name_off, name) == 0)
			return number;
		at += sizeof(*type) + behind(type);
	}
	return 0;
}

static int new_map(void)
{
	union bpf_attr what = {
		.map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 8, .max_entries = 1
	};

	return bpf(BPF_MAP_CREATE, &what);
}

static int new_program(int map, uint32_t function)
{
	struct bpf_insn code[] = {
		/* word [r10 - 4] = 0; r2 = r10 - 4; r1 = map; r0 = map_lookup_elem(r1, r2) */
		{ BPF_ST | BPF_MEM | BPF_W, BPF_REG_10, 0, -4, 0 },
		{ BPF_ALU64 | BPF_MOV | BPF_X, BPF_REG_2, BPF_REG_10, 0, 0 },
		{ BPF_ALU64 | BPF_ADD | BPF_K, BPF_REG_2, 0, 0, -4 },
		{ BPF_LD | BPF_DW | BPF_IMM, BPF_REG_1, BPF_PSEUDO_MAP_FD, 0, map },
		{ 0, 0, 0, 0, 0 },
		{ BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_map_lookup_elem },
		/* if r0 != 0: atomically [r0] += 1 */
		{ BPF_JMP | BPF_JEQ | BPF_K, BPF_REG_0, 0, 2, 0 },
		{ BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_1, 0, 0, 1 },
		{ BPF_STX | BPF_ATOMIC | BPF_DW, BPF_REG_0, BPF_REG_1, 0, BPF_ADD },
		/* return 0 */
		{ BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_0, 0, 0, 0 },
		{ BPF_JMP | BPF_EXIT, 0, 0, 0, 0 },
	};
	static char log[4096];
	union bpf_attr what = {
		.prog_type = BPF_PROG_TYPE_TRACING,
		.expected_attach_type = BPF_TRACE_FENTRY,
		.attach_btf_id = function,
		.insns = (uintptr_t)code,
		.insn_cnt = sizeof(code) / sizeof(code[0]),
		.license = (uintptr_t)"GPL",
		.log_buf = (uintptr_t)log,
		.log_size = sizeof(log),
		.log_level = 1,
	};
	int program = bpf(BPF_PROG_LOAD, &what);

	if (program < 0)
		printf("fentry: %s\n%s", strerror(errno), log);
	return program;
}

static int attach(int program)
{
	union bpf_attr what = { .raw_tracepoint = { .prog_fd = (uint32_t)program } };

	return bpf(BPF_RAW_TRACEPOINT_OPEN, &what);
}

static uint64_t counted(int map)
{
	uint32_t key = 0;
	uint64_t value = 0;
	union bpf_attr what = {
		.map_fd = (uint32_t)map, .key = (uintptr_t)&key, .value = (uintptr_t)&value
	};

	return bpf(BPF_MAP_LOOKUP_ELEM, &what) == 0 ? value : ~0ull;
}

int main(int argc, char **argv)
{
	uint32_t function = argc > 2 ? type_of(argv[1]) : 0;
	int map = new_map();
	int program, link, status = 1;
	pid_t child;

	if (function == 0 || map < 0) {
		printf("fentry: no function, or no map\n");
		return 1;
	}
	program = new_program(map, function);
	link = program < 0 ? program : attach(program);
	if (link < 0) {
		printf("fentry: %s is not to be had: %s\n", argv[1], strerror(errno));
		return 2;
	}
	child = fork();
	if (child == 0) {
		execvp(argv[2], argv + 2);
		_exit(127);
	}
	waitpid(child, &status, 0);
	close(link);
	printf("fentry counted %llu\n", (unsigned long long)counted(map));
	return 0;
}
