#include <pinmap.h>

#include <poll.h>
#include <stdio.h>

int main(void)
{
	struct pinmap_device *gpu = pinmap_find_accelerator();
	struct pinmap_stream *stream = pinmap_stream_create(gpu, NULL);
	struct pinmap_completion *completion;
	struct pollfd files[2];

	/* A million nanoseconds of the device's time. */
	if (pinmap_testgpu_spin(stream, 1000000)) {
		fprintf(stderr, "%s\n", pinmap_last_error());
		return 1;
	}
	completion = pinmap_stream_completion(stream);
	files[0] = (struct pollfd){ .fd = pinmap_completion_fd(completion), .events = POLLIN };
	files[1] = (struct pollfd){ .fd = pinmap_fd(gpu), .events = POLLIN };
	poll(files, 2, -1);
	printf("the stream is %s\n",
	       pinmap_completion_query(completion) == 1 ? "done" : pinmap_last_error());
	pinmap_completion_destroy(completion);
	pinmap_stream_destroy(stream);
	pinmap_close(gpu);
	return files[1].revents != 0;
}
