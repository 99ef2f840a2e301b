// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "fuse.h"

#include "device.h"

#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { FILE_NODE = 2, REQUEST = 256 << 10 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void answer(struct fuse *fuse, uint64_t unique, int error, const void *data, size_t length)
{
	struct fuse_out_header header = {
		.len = sizeof(header) + length,
		.error = error,
		.unique = unique,
	};
	struct iovec parts[] = { { &header, sizeof(header) }, { (void *)data, length } };

	/* whoever asked may be gone */
	if (writev(fuse->device, parts, 2) < 0 && errno != ENOENT && errno != ENODEV)
		FAIL("answer to FUSE: %s", error_name(errno));
}

static void answer_read(struct fuse *fuse, uint64_t unique, uint32_t length)
{
	char *content = malloc(length);

	memset(content, fuse->byte, length);
	answer(fuse, unique, 0, content, length);
	free(content);
}

static struct fuse_attr attributes(const struct fuse *fuse, uint64_t node)
{
	return (struct fuse_attr){
		.ino = node,
		.size = node == FILE_NODE ? fuse->length : 0,
		.mode = node == FILE_NODE ? S_IFREG | 0666 : S_IFDIR | 0777,
		.nlink = 1,
		.blksize = PAGE,
	};
}

static void read_asked(struct fuse *fuse, uint64_t unique, const struct fuse_read_in *in)
{
	uint64_t left = in->offset < fuse->length ? fuse->length - in->offset : 0;
	uint32_t length = in->size < left ? in->size : left;

	pthread_mutex_lock(&lock);
	if (fuse->answers) {
		answer_read(fuse, unique, length);
	} else {
		CHECK(fuse->waiting < ARRAY_SIZE(fuse->held));
		fuse->held[fuse->waiting].unique = unique;
		fuse->held[fuse->waiting++].length = length;
	}
	pthread_mutex_unlock(&lock);
	__atomic_fetch_add(&fuse->reads, 1, __ATOMIC_SEQ_CST);
}

static void asked(struct fuse *fuse, const struct fuse_in_header *header, const void *in)
{
	const struct fuse_init_in *init = in;
	uint64_t unique = header->unique;

	switch (header->opcode) {
	case FUSE_INIT:
		answer(fuse, unique, 0,
		       &(struct fuse_init_out){
			       .major = FUSE_KERNEL_VERSION,
			       .minor = FUSE_KERNEL_MINOR_VERSION,
			       .max_readahead = init->max_readahead,
			       .flags = fuse->in_turn ? 0 : init->flags & FUSE_ASYNC_READ,
			       .max_write = PAGE,
		       },
		       sizeof(struct fuse_init_out));
		break;
	case FUSE_LOOKUP:
		answer(fuse, unique, 0,
		       &(struct fuse_entry_out){
			       .nodeid = FILE_NODE,
			       .entry_valid = 3600,
			       .attr_valid = 3600,
			       .attr = attributes(fuse, FILE_NODE),
		       },
		       sizeof(struct fuse_entry_out));
		break;
	case FUSE_GETATTR:
		answer(fuse, unique, 0,
		       &(struct fuse_attr_out){
			       .attr_valid = 3600,
			       .attr = attributes(fuse, header->nodeid),
		       },
		       sizeof(struct fuse_attr_out));
		break;
	case FUSE_OPEN:
		answer(fuse, unique, 0, &(struct fuse_open_out){ .open_flags = FOPEN_KEEP_CACHE },
		       sizeof(struct fuse_open_out));
		break;
	case FUSE_READ:
		read_asked(fuse, unique, in);
		break;
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT:
		break; /* no answer is wanted; an interrupted read goes on waiting */
	case FUSE_FLUSH:
	case FUSE_RELEASE:
		answer(fuse, unique, 0, NULL, 0);
		break;
	default:
		answer(fuse, unique, -ENOSYS, NULL, 0);
	}
}

static void *serve(void *argument)
{
	struct fuse *fuse = argument;
	char *request = malloc(REQUEST);

	for (;;) {
		ssize_t length = read(fuse->device, request, REQUEST);
		const struct fuse_in_header *header = (void *)request;

		if (length < 0 && (errno == EINTR || errno == EAGAIN || errno == ENOENT))
			continue;
		if (length < (ssize_t)sizeof(*header))
			break; /* unmounted */
		asked(fuse, header, header + 1);
	}
	free(request);
	return NULL;
}

struct fuse *fuse_mount(size_t length, bool in_turn)
{
	/* children see what is asked for, too */
	struct fuse *fuse = SYS(mmap(NULL, sizeof(*fuse), PROT_READ | PROT_WRITE,
				     MAP_SHARED | MAP_ANONYMOUS, -1, 0));
	char directory[] = "/run/fuse-XXXXXX", options[96];
	pthread_t thread;

	fuse->length = length;
	fuse->in_turn = in_turn;
	fuse->device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	if (fuse->device < 0)
		SKIP("the kernel has no FUSE: %s", error_name(errno));
	if (!mkdtemp(directory))
		FAIL("%s: %s", directory, error_name(errno));
	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other",
		 fuse->device);
	SYS(mount("pinmap-test", directory, "fuse", MS_NOSUID | MS_NODEV, options));
	snprintf(fuse->path, sizeof(fuse->path), "%s/file", directory);
	CHECK_OK(-pthread_create(&thread, NULL, serve, fuse));
	CHECK_OK(-pthread_detach(thread));
	return fuse;
}

void fuse_answer(struct fuse *fuse, char byte)
{
	pthread_mutex_lock(&lock);
	fuse->byte = byte;
	fuse->answers = true;
	while (fuse->waiting) {
		unsigned int last = --fuse->waiting;

		answer_read(fuse, fuse->held[last].unique, fuse->held[last].length);
	}
	pthread_mutex_unlock(&lock);
}

void fuse_unmount(struct fuse *fuse)
{
	char directory[sizeof(fuse->path)];

	snprintf(directory, sizeof(directory), "%s", fuse->path);
	*strrchr(directory, '/') = 0;
	/* MNT_FORCE ends all requests with an error */
	SYS(umount2(directory, MNT_FORCE | MNT_DETACH));
	SYS(rmdir(directory));
}
